/**
 * @file What a rank tells while it runs: lines appended to a file of its own, which the studio follows. Written at once, not by
 * the event loop: a rank computes from step to step without turning to it.
 */
import { closeSync, ftruncateSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type LiveRun, type LiveStep, liveFileOf } from '@pipewright/schedule';

/** The variable that names the folder of a live run. */
export const LIVE_FOLDER = 'PIPEWRIGHT_LIVE';

/** Whether somebody wants to watch this run. */
export function isWatched(): boolean {
  return (process.env[LIVE_FOLDER] ?? '') !== '';
}

/** Times of actions are written about this often, in milliseconds; what a step took is always written. */
const detailMs = 200;
/** So many steps at the beginning always come with times: a short run is to be compared with its plan too. */
const firstSteps = 8;
/** Weight of the newest step in the mean time of steps. */
const newest = 0.2;
/** A file that has grown this large begins again. */
const mostBytes = 64 * 1024 * 1024;

/** The file of one rank. */
export class LiveFeed {
  private readonly handle: number;
  private readonly head: string;
  private written = 0;
  private meanMs = 0;
  private failed = false;

  /** Begins a file in a folder; null where no folder is named or it cannot be written. */
  static open(folder: string | undefined, run: Omit<LiveRun, 'kind' | 'version'>): LiveFeed | null {
    if (folder === undefined || folder === '') return null;
    try {
      mkdirSync(folder, { recursive: true });
      return new LiveFeed(openSync(join(folder, liveFileOf(run.rank)), 'w', 0o600), run);
    } catch (error) {
      console.error(`pipewright: the run goes on unwatched: cannot write to ${folder} (${(error as Error).message})`);
      return null;
    }
  }

  private constructor(handle: number, run: Omit<LiveRun, 'kind' | 'version'>) {
    this.handle = handle;
    this.head = `${JSON.stringify({ kind: 'run', version: 1, ...run } satisfies LiveRun)}\n`;
    this.write(this.head);
  }

  /**
   * Whether a step should come with the times of its actions. A picture needs the same step of all ranks, so its number
   * decides: the first ones, then every first, second, fourth, eighth one and so on, by the time that steps take.
   */
  wantsActions(step: number, ms: number): boolean {
    this.meanMs = this.meanMs === 0 ? ms : this.meanMs + newest * (ms - this.meanMs);
    const every = 2 ** Math.max(0, Math.min(16, Math.round(Math.log2(detailMs / Math.max(1e-3, this.meanMs)))));
    return step < firstSteps || step % every === 0;
  }

  /** A step that has ended. */
  step(step: Omit<LiveStep, 'kind'>): void {
    this.write(`${JSON.stringify({ kind: 'step', ...step } satisfies LiveStep)}\n`);
  }

  close(): void {
    if (!this.failed) closeSync(this.handle);
    this.failed = true;
  }

  private write(text: string): void {
    if (this.failed) return;
    try {
      if (this.written > mostBytes) {
        ftruncateSync(this.handle, 0);
        this.written = writeSync(this.handle, this.head, 0);
      }
      this.written += writeSync(this.handle, text, this.written);
    } catch (error) {
      // Training matters more than being watched.
      this.close();
      console.error(`pipewright: the run goes on unwatched: ${(error as Error).message}`);
    }
  }
}
