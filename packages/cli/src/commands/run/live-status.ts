/** @file What the launcher tells whoever watches a job: where every rank is, and how it ended. */
import { appendFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { LivePlace, LiveProgress, LiveStatus } from '@pipewright/schedule';
import type { Launched, RankPlace } from 'pipewright/launch';
import { readProgressOf } from './live-progress.ts';

const lookMs = 200;
/** Without any change a line is written this often, so that a reader sees that the launcher lives. */
const quietMs = 2000;
/** A file that has grown this large begins again. */
const mostBytes = 8 * 1024 * 1024;
/** Steps that take longer than this are shown while they grow, in milliseconds. */
const longMs = 500;
/** Actions of all ranks together that are told of a step that grows, and of one that has failed. */
const mostGrowing = 4000;
const mostFailed = 200_000;
/** Whole nanoseconds, in milliseconds. */
const NANOSECOND = 1e-6;

/** Writes the status of a job into the folder that its ranks write to. */
export class LiveStatusWriter {
  private readonly file: string;
  private readonly folder: string;
  private readonly ranks: Launched;
  private readonly timer: NodeJS.Timeout;
  private places: readonly LivePlace[] = [];
  private last = '';
  private lastTime = 0;
  private bytes = 0;

  /** The folder is there already. */
  constructor(folder: string, ranks: Launched) {
    this.folder = folder;
    this.file = join(folder, 'launcher.jsonl');
    this.ranks = ranks;
    writeFileSync(this.file, '', { mode: 0o600 });
    this.timer = setInterval(() => this.look(), lookMs);
    this.timer.unref();
  }

  /** The job is over; `places` is where its ranks stood. */
  end(ended: { readonly failed: boolean; readonly message: string }, places: readonly RankPlace[] | null): void {
    clearInterval(this.timer);
    this.look(ended, places ?? []);
  }

  private look(ended: LiveStatus['ended'] = null, places: readonly RankPlace[] = this.ranks.places()): void {
    const time = Date.now();
    const before = new Map(this.places.map((place) => [place.rank, place]));
    this.places = places.map(({ rank, state, step, evaluates, slot, action, waitingFor }) => {
      const old = before.get(rank);
      const place = {
        rank,
        state,
        step: step ?? null,
        ...(evaluates === true ? { evaluates } : {}),
        slot: slot ?? null,
        action,
        waitingFor: waitingFor ?? null,
      };
      const same =
        old !== undefined &&
        old.state === state &&
        old.step === place.step &&
        old.evaluates === place.evaluates &&
        old.slot === place.slot &&
        old.action === action &&
        old.waitingFor === place.waitingFor;
      return { ...place, since: same ? old.since : time };
    });
    const clock = Number(process.hrtime.bigint()) * NANOSECOND;
    const progress = this.progressAt(clock, ended);
    const text = JSON.stringify([this.places, progress]);
    if (ended === null && text === this.last && time - this.lastTime < quietMs) return;
    this.last = text;
    this.lastTime = time;
    const status: LiveStatus = {
      kind: 'status',
      places: this.places,
      ended,
      time,
      clock,
      ...(progress && { progress }),
    };
    const line = `${JSON.stringify(status)}\n`;
    try {
      this.bytes += line.length;
      if (this.bytes > mostBytes) {
        writeFileSync(this.file, line);
        this.bytes = line.length;
      } else appendFileSync(this.file, line);
    } catch {
      clearInterval(this.timer); // nobody can watch any more; the job goes on
    }
  }
  /** How far the ranks are in their steps, where that is worth telling: the job failed, or a step takes long. */
  private progressAt(clock: number, ended: LiveStatus['ended']): readonly LiveProgress[] | null {
    const count = Math.max(1, this.places.length);
    if (ended !== null)
      return ended.failed ? readProgressOf(this.folder, Math.max(1, Math.floor(mostFailed / count))) : null;
    const isLong = ({ origin, begin, end, before }: LiveProgress): boolean =>
      before > longMs || (end < 0 && clock - origin - begin > longMs);
    if (!readProgressOf(this.folder, 0).some(isLong)) return null;
    return readProgressOf(this.folder, Math.max(1, Math.floor(mostGrowing / count)));
  }
}
