/** @file Lets a job be watched: the folder its ranks write to, and the studio that shows it. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import type { PipelinePlan } from '@pipewright/schedule';
import type { LaunchError, Launched } from 'pipewright/launch';
import { removeProgress } from './live-progress.ts';
import { LiveStatusWriter } from './live-status.ts';
import { type PlanRunFlags, reportPlan } from './plan-check.ts';

/** The flags about watching. */
export interface WatchFlags {
  readonly live?: string;
  readonly studio?: boolean;
}

/** A job that is watched. */
export interface Watch {
  /** The job has started. */
  follow(ranks: Launched): void;
  /** The job has ended; with an error where it failed. */
  end(error: unknown): Promise<void>;
}

/** The name of the plan's file in the folder of a job. */
const livePlan = 'plan.json';

/** Time for pages to hear how the job ended. */
const lastWordMs = 700;

/** Prepares for watching where it was asked for; before the ranks start, because they inherit the folder's name. */
export async function openWatch(flags: WatchFlags & PlanRunFlags, plan: PipelinePlan | null): Promise<Watch | null> {
  if (flags.live === undefined && flags.studio !== true && plan === null) return null;
  const folder = flags.live === undefined ? mkdtempSync(join(tmpdir(), 'pipewright-live-')) : resolve(flags.live);
  (await import('@pipewright/torch/files')).makeFolder(folder);
  process.env['PIPEWRIGHT_LIVE'] = folder;
  const files = plan === null ? [] : [{ name: livePlan, text: JSON.stringify(plan) }];
  keepPlan(folder, files[0]?.text ?? null);
  removeProgress(folder);
  const studio =
    flags.studio === true ? await (await import('@pipewright/studio')).serveStudio({ live: folder, files }) : null;
  if (studio !== null) console.error(`pipewright: the studio is at ${studio.url}`);
  let writer: LiveStatusWriter | null = null;
  return {
    follow: (ranks) => {
      writer = new LiveStatusWriter(folder, ranks);
    },
    end: async (error) => {
      const message = error === null ? '' : error instanceof Error ? error.message : String(error);
      writer?.end({ failed: error !== null, message }, (error as LaunchError | null)?.places ?? null);
      if (studio !== null) {
        await new Promise((done) => setTimeout(done, lastWordMs));
        await studio.close();
      }
      if (plan !== null && error === null) await reportPlan(plan, folder, flags);
      if (flags.live === undefined) rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** The plan that a run follows, in its folder: whoever comes to watch later finds it there. */
function keepPlan(folder: string, text: string | null): void {
  const file = join(folder, livePlan);
  if (text === null) {
    rmSync(file, { force: true }); // of a run before
    return;
  }
  writeFileSync(file, text, { mode: 0o600 });
}
