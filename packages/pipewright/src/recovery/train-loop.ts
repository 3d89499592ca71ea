/**
 * @file A training loop that survives the loss of ranks. Every step is all or nothing: when a rank is lost, the others keep their
 * processes and memory, only the lost one is started again, and all continue from the newest state that is available for every rank.
 */
import { distributed } from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions, show } from '../base/checks.ts';
import { type PassedErrorCode, PipelineError } from '../base/errors.ts';
import { setInterruption } from '../base/interruption.ts';
import { steadyMs } from '../base/steady-clock.ts';
import { giveUpSaves } from '../checkpoint/writing/writer.ts';
import type { LauncherOrder } from '../launch/replacement/messages.ts';
import { rankStatus } from '../status/rank-status.ts';
import { Copies } from './copies.ts';
import { LauncherLink } from './launcher-link.ts';
import { RankState, type TrainState } from './state.ts';

/** Checkpoints on disk, for when all ranks are started again or no copy in memory is left. */
export interface LoopCheckpoints<Connected> {
  /** Saves after this many steps. */
  readonly every: number;
  /** Saves the state; called by all ranks. `step` is the number of steps done. */
  save(connected: Connected, step: number): unknown;
  /** Loads the newest state, and returns the number of steps it had done; undefined where there is none. Called by all ranks. */
  load(connected: Connected): number | undefined | Promise<number | undefined>;
}

/** How to train. */
export interface TrainLoopOptions<Connected> {
  /** How many steps there are in all. */
  readonly steps: number;
  /** Everything that a step changes: modules, optimizers, schedules, loaders, scalers, generators, plain counters. */
  readonly state: TrainState;
  /** Makes what needs the other ranks: meshes, replicas, stages, the runtime. Called again, by all ranks, after a loss. */
  connect(group: distributed.ProcessGroup): Connected;
  /** One step, from 0. What it changes must be in `state`. */
  step(connected: Connected, step: number): unknown;
  /** How many other ranks keep a copy of the state of each in memory. Default 1; 0 leaves recovery to checkpoints. */
  readonly copies?: number | undefined;
  /** After how many steps copies are made; so many steps may have to be repeated. Default 1. */
  readonly copyEvery?: number | undefined;
  /** Checkpoints on disk, for when all ranks are started again or no copy is left. */
  readonly checkpoint?: LoopCheckpoints<Connected> | undefined;
}

const known = ['steps', 'state', 'connect', 'step', 'copies', 'copyEvery', 'checkpoint'];

/**
 * Trains `steps` steps. Under `pipewright run --max-restarts`, a rank that is lost is started again alone, and the step is repeated
 * with the same numbers; under other launchers, and without that flag, it is a plain loop that begins at the last checkpoint.
 *
 * @example await trainLoop({ steps: 100, state: { model, optimizer }, connect: (group) => new PipelineRuntime(stage(group), '1F1B', options), step: (runtime) => train(runtime) })
 */
export async function trainLoop<Connected>(options: TrainLoopOptions<Connected>): Promise<void> {
  checkArgument(
    'trainLoop',
    typeof options === 'object' && options !== null,
    ['the argument', options],
    '{ steps, state, connect, step }',
  );
  checkOptions('trainLoop', options, known);
  checkCount('trainLoop', 'steps', options.steps, 0);
  checkCount('trainLoop', 'copies', options.copies ?? 1, 0);
  checkCount('trainLoop', 'copyEvery', options.copyEvery ?? 1);
  for (const name of ['connect', 'step'] as const)
    if (typeof options[name] !== 'function')
      throw new PipelineError('BAD_OPTION', `trainLoop: ${name} is ${show(options[name])}; give a function`);
  if (options.checkpoint !== undefined) checkCount('trainLoop', 'checkpoint.every', options.checkpoint.every);
  const link = LauncherLink.open();
  if (distributed.isInitialized())
    throw new PipelineError(
      'BAD_OPTION',
      'trainLoop: this rank has joined its group already; leave initProcessGroup() to trainLoop, which joins anew after a loss',
    );
  const loop = new Loop(options);
  try {
    if (link === null) await loop.run();
    else await loop.survive(link);
  } finally {
    loop.dispose();
  }
}

/** The ranks were interrupted because another one was lost. */
const consequences = new Set<PassedErrorCode>([
  'PEER_LOST',
  'ABORTED',
  'CANCELLED',
  'TIMED_OUT',
  'BROKEN',
  'STEP_REFUSED',
  'CLOSED',
  'IN_USE',
]);

class Loop<Connected> {
  private readonly options: TrainLoopOptions<Connected>;
  private readonly state: RankState;
  private readonly copies: Copies;
  private readonly copyEvery: number;
  private generation = -1;
  private connected: { readonly value: Connected } | undefined;
  /** How many steps were begun. */
  private begun = 0;
  private finished = false;

  constructor(options: TrainLoopOptions<Connected>) {
    this.options = options;
    this.state = new RankState(options.state);
    this.copies = new Copies(this.state, options.copies ?? 1);
    this.copyEvery = options.copyEvery ?? 1;
  }

  /** Where lost ranks are not started again: trains from the last checkpoint to the end. */
  async run(): Promise<void> {
    const group = distributed.initProcessGroup();
    const connected = this.options.connect(group);
    this.connected = { value: connected };
    for (let step = (await this.options.checkpoint?.load(connected)) ?? 0; step < this.options.steps; step++)
      await this.step(connected, step);
    this.leave();
  }

  /** Runs one generation after the other, until all ranks have done all steps. */
  async survive(link: LauncherLink): Promise<void> {
    let why = '';
    for (;;) {
      const step = this.begun === 0 ? null : this.begun - 1;
      rankStatus.set({ action: 'waiting for the ranks of the next generation', waitingFor: 'all' });
      const { generation, finished } = this;
      const order = await link.ready({ generation, step: finished ? null : step, finished, why });
      if (order.kind === 'end') return this.leave();
      this.leave();
      this.finished = false;
      try {
        await this.live(order, link);
        this.finished = true;
        why = 'all steps are done';
      } catch (error) {
        if (!isConsequence(error)) throw error;
        why = error instanceof Error ? error.message : String(error);
      }
      // The groups of a finished generation stay open: the others may still need what was sent.
      if (!this.finished) {
        giveUpSaves();
        this.leave();
      }
    }
  }

  dispose(): void {
    this.copies.dispose();
  }

  /** One generation: connects, restores the newest common state, trains. */
  private async live(order: Extract<LauncherOrder, { kind: 'generation' }>, link: LauncherLink): Promise<void> {
    const { number: generation, masterPort, secret, group: name } = order;
    this.generation = generation;
    if (name === undefined) distributed.setGeneration(generation);
    setInterruption(() => link.calledGeneration() > generation);
    const group = distributed.initProcessGroup({ masterPort, secret, name });
    // If a rank is lost before the first copies are made, its shard of the initial values is lost with it.
    const wasSharded = this.state.hasShards();
    const connected = this.options.connect(group);
    this.connected = { value: connected };
    const plan = this.copies.plan(group, this.begun);
    const [first, from] = await this.restore(group, plan, wasSharded);
    link.tell({ kind: 'restored', generation, step: first, from, atMs: steadyMs() });
    let isBehind = true;
    for (let step = first; ; step++) {
      if (isBehind && step >= Math.min(plan.begun, this.options.steps)) {
        link.tell({ kind: 'repeated', generation, atMs: steadyMs() });
        isBehind = false;
      }
      if (step >= this.options.steps) return;
      this.begun = Math.max(this.begun, step + 1);
      await this.step(connected, step);
      const done = step + 1;
      if (this.copies.count > 0 && (done % this.copyEvery === 0 || done === this.options.steps))
        this.copies.commit(group, done);
    }
  }

  /** Restores the state; returns the step from which to continue, and where the state came from. */
  private async restore(
    group: distributed.ProcessGroup,
    plan: ReturnType<Copies['plan']>,
    wasSharded: boolean,
  ): Promise<[number, string]> {
    if (plan.step !== undefined) return [plan.step, this.copies.restore(group, plan)];
    const saved = await this.options.checkpoint?.load((this.connected as { readonly value: Connected }).value);
    if (saved === undefined && (plan.begun > 0 || plan.missing.length > 0 || wasSharded))
      throw new PipelineError(
        'STATE_LOST',
        `trainLoop: no copy of the state of ${plan.missing.length === 0 ? 'a lost rank' : `rank ${plan.missing.join(', ')}`} is left; keep more copies (copies: 2), or give a checkpoint. All ranks begin again`,
        { ranks: plan.missing },
      );
    const first = saved ?? 0;
    if (this.copies.count > 0) this.copies.commit(group, first);
    return [first, saved === undefined ? '' : 'the checkpoint'];
  }

  private async step(connected: Connected, step: number): Promise<void> {
    await this.options.step(connected, step);
    const { checkpoint } = this.options;
    // The save comes before the step counts as done: if it is interrupted, it is repeated with the step.
    if (checkpoint !== undefined && (step + 1) % checkpoint.every === 0) await checkpoint.save(connected, step + 1);
  }

  /** Closes the groups of a generation, and everything that was made from them. */
  private leave(): void {
    const value = this.connected?.value;
    this.connected = undefined;
    if (typeof value === 'object' && value !== null && 'dispose' in value && typeof value.dispose === 'function')
      value.dispose();
    distributed.destroyProcessGroup();
  }
}

/** Whether an error comes from the loss of another rank. */
function isConsequence(error: unknown): boolean {
  for (let one: unknown = error, depth = 0; one instanceof Error && depth < 10; one = one.cause, depth++)
    if ('code' in one && consequences.has(String(one.code))) return true;
  return false;
}
