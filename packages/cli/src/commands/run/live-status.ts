/** @file What the launcher tells whoever watches a job: where every rank is, and how it ended. */
import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { LivePlace, LiveStatus } from '@pipewright/schedule';
import type { Launched, RankPlace } from 'pipewright/launch';

const lookMs = 200;
/** Without any change a line is written this often, so that a reader sees that the launcher lives. */
const quietMs = 2000;
/** A file that has grown this large begins again. */
const mostBytes = 8 * 1024 * 1024;

/** Writes the status of a job into the folder that its ranks write to. */
export class LiveStatusWriter {
  private readonly file: string;
  private readonly ranks: Launched;
  private readonly timer: NodeJS.Timeout;
  private places: readonly LivePlace[] = [];
  private last = '';
  private lastTime = 0;
  private bytes = 0;

  constructor(folder: string, ranks: Launched) {
    mkdirSync(folder, { recursive: true });
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
    this.places = places.map(({ rank, state, step, slot, action, waitingFor }) => {
      const old = before.get(rank);
      const place = {
        rank,
        state,
        step: step ?? null,
        slot: slot ?? null,
        action,
        waitingFor: waitingFor ?? null,
      };
      const same =
        old !== undefined &&
        old.state === state &&
        old.step === place.step &&
        old.slot === place.slot &&
        old.action === action &&
        old.waitingFor === place.waitingFor;
      return { ...place, since: same ? old.since : time };
    });
    const text = JSON.stringify(this.places);
    if (ended === null && text === this.last && time - this.lastTime < quietMs) return;
    this.last = text;
    this.lastTime = time;
    const line = `${JSON.stringify({ kind: 'status', places: this.places, ended, time } satisfies LiveStatus)}\n`;
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
}
