/** @file Work of ranks on the cores of machines: while more ranks of a machine work than it has cores, all of them get equal parts. */

import type { CoreCosts } from '../costs/costs.ts';

/** The work of a rank. */
interface Job {
  readonly rank: number;
  /** What is left of it from `since` on, as the time that it takes with a core of its own. */
  left: number;
  since: number;
  /** The part of a core that it gets; 0: it has not begun. */
  rate: number;
}

/** Work that has been done. */
export interface Done {
  readonly rank: number;
  readonly end: number;
}

/** Work in order of time: it is begun at any time that is not past, and ends are asked for one after the other. */
export class SharedCores {
  private readonly count: number;
  private readonly ranks: number;
  private readonly jobs: Job[] = [];
  private now = 0;

  /** The cores of so many ranks; null where each of them has one. */
  static of(cores: Required<CoreCosts> | null, ranks: number): SharedCores | null {
    return cores === null || cores.count >= Math.min(ranks, cores.ranks) ? null : new SharedCores(cores);
  }

  private constructor({ count, ranks }: Required<CoreCosts>) {
    this.count = count;
    this.ranks = ranks;
  }

  /** A rank begins to work; it has ended what it did before. */
  add(rank: number, begin: number, work: number): void {
    this.jobs.push({ rank, left: work, since: begin, rate: 0 });
  }

  /** What ends next; null where nobody works. */
  next(): Done | null {
    for (;;) {
      let first: Job | null = null;
      let at = Number.POSITIVE_INFINITY;
      for (const job of this.jobs) {
        const time = job.rate === 0 ? job.since : job.since + job.left / job.rate;
        // Of several at one time those that end come first: who begins then finds their cores free.
        if (time < at || (time === at && job.rate > 0 && first?.rate === 0)) [first, at] = [job, time];
      }
      if (first === null) return null;
      this.now = Math.max(this.now, at);
      if (first.rate > 0) {
        this.jobs.splice(this.jobs.indexOf(first), 1);
        this.divide(first.rank);
        return { rank: first.rank, end: this.now };
      }
      first.rate = 1;
      this.divide(first.rank);
    }
  }

  /** Gives the ranks of a machine equal parts of its cores, from now on. */
  private divide(rank: number): void {
    const machine = Math.floor(rank / this.ranks);
    const working = this.jobs.filter((job) => job.rate > 0 && Math.floor(job.rank / this.ranks) === machine);
    const rate = Math.min(1, this.count / working.length);
    for (const job of working) {
      if (job.rate === rate) continue;
      job.left = Math.max(0, job.left - (this.now - job.since) * job.rate);
      job.since = this.now;
      job.rate = rate;
    }
  }
}
