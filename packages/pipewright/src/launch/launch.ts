/** @file Starts ranks, and starts all of them again after a failure, as often as is asked for. */
import { formatDigest } from '../status/digest.ts';
import type { RankPlace } from '../status/place.ts';
import { Attempt, type AttemptOptions, LIMIT_MS } from './attempt.ts';
import { type LaunchOptions, type LaunchPlan, planLaunch } from './launch-options.ts';
import { makeSecret, secretFromFile } from './machines/secret.ts';
import { printLine } from './ranks/rank-output.ts';
import type { Recovery } from './replacement/recovery.ts';
import { describeRestart, type Restart } from './restart.ts';

/** Ranks under way. */
export interface Launched<Result = unknown> {
  /** What `main` of each rank of this machine returned, in order. Rejects with a `LaunchError` when a rank has failed, all have ended, and they are not started again. */
  readonly done: Promise<Result[]>;
  /** Where each rank is now. */
  places(): RankPlace[];
  /** Who waits for whom now, in one line. */
  digest(): string;
  /** The processes of the ranks, in order; empty for threads, and before they are started. */
  pids(): readonly number[];
  /** Sends a signal to all ranks; those that do not end within `graceMs` are killed. A second call kills at once. */
  end(signal?: NodeJS.Signals): void;
  /** Stops the processes of all ranks, or lets them go on. */
  pause(on: boolean): void;
  /** The secret that machine 0 has made because none was given; the other machines need it. */
  readonly madeSecret: string | undefined;
  /** How ranks failed and were started again so far. */
  restarts(): readonly Restart[];
  /** How ranks were lost and replaced while the others lived, so far. */
  recoveries(): readonly Recovery[];
}

/**
 * Starts ranks on this machine, as processes or threads. Each finds its place in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
 * and MASTER_PORT, imports the script and calls its `main`, where it exports one.
 *
 * @example const losses = await launch<number>({ ranks: 4, script: new URL('./train.ts', import.meta.url), data: { steps: 10 } }).done
 */
export function launch<Result = unknown>(options: LaunchOptions): Launched<Result> {
  const job = new Job(planLaunch(options), options);
  return {
    done: job.done as Promise<Result[]>,
    places: () => job.attempt.places(),
    digest: () => formatDigest(job.attempt.places()),
    pids: () => job.attempt.pids(),
    end: (signal) => job.end(signal ?? 'SIGTERM'),
    pause: (on) => job.attempt.pause(on),
    madeSecret: job.madeSecret,
    restarts: () => job.restarts,
    recoveries: () => job.recoveries,
  };
}

/** All attempts of a launch, one after the other. */
class Job {
  readonly madeSecret: string | undefined;
  readonly restarts: Restart[] = [];
  readonly recoveries: Recovery[] = [];
  /** How often lost ranks were started again alone. */
  private replaced = 0;
  readonly done: Promise<unknown[]>;
  attempt: Attempt;
  private readonly plan: LaunchPlan;
  private readonly options: LaunchOptions;
  private readonly id: string = makeSecret();
  private signalled: NodeJS.Signals | undefined;
  private secret: string;

  constructor(plan: LaunchPlan, options: LaunchOptions) {
    this.plan = plan;
    this.options = options;
    const given = plan.secret ?? plan.secretFile;
    this.secret = plan.secret ?? makeSecret();
    this.madeSecret = plan.nnodes > 1 && given === undefined ? this.secret : undefined;
    this.attempt = new Attempt(plan, this.attemptOptions());
    this.done = this.run();
    this.done.catch(() => undefined);
  }

  end(signal: NodeJS.Signals): void {
    this.signalled ??= signal;
    this.attempt.end(signal);
  }

  private attemptOptions(): AttemptOptions {
    const { plan, options } = this;
    const restarts = (): number => this.restarts.length + this.replaced;
    return {
      line: options.onLine ?? printLine,
      secret: () => this.secretOfMachines(),
      id: this.id,
      restarts,
      mayRestart: () => restarts() < plan.maxRestarts,
      replaced: () => void this.replaced++,
      recovered: (recovery) => {
        this.recoveries.push(recovery);
        options.onRecovery?.(recovery);
      },
    };
  }

  private async run(): Promise<unknown[]> {
    for (;;) {
      const { attempt } = this;
      try {
        return await attempt.done;
      } catch (error) {
        if (this.signalled !== undefined || !attempt.startsAgain) throw error;
        const restart = describeRestart(error, attempt.times, {
          count: this.restarts.length + this.replaced + 1,
          of: this.plan.maxRestarts,
        });
        this.restarts.push(restart);
        this.options.onRestart?.(restart);
      }
      this.attempt = new Attempt(this.plan, this.attemptOptions());
    }
  }

  /** From a file, which machine 0 may have to write first. */
  private async secretOfMachines(): Promise<string> {
    const { secretFile, nodeRank, timeoutMs } = this.plan;
    if (secretFile !== undefined && this.plan.nnodes > 1)
      this.secret = await secretFromFile(secretFile, nodeRank === 0, timeoutMs ?? LIMIT_MS);
    return this.secret;
  }
}
