/**
 * @file The rows of a schedule, run without messages: every action in its order, with as many microbatches under way as in the
 * run, so that memory is as warm or as cold as there. Inputs and gradients are there before a round begins.
 */
import type { Schedule } from '@pipewright/schedule';
import { type distributed, scope, type Tensor } from '@pipewright/torch';
import type { StageRun } from './stage-run.ts';
import { usual } from './usual.ts';

/** The kinds of actions that are timed. */
export type TimedKind = 'F' | 'I' | 'W' | 'B';

/** An action of a row. */
export interface RowAction {
  readonly stage: number;
  readonly kind: TimedKind;
  readonly microbatch: number;
}

/** Seconds of the actions of a stage; what its row does not have is missing. */
export type StageTimes = Partial<Record<TimedKind | 'inputGradient', number>>;

/** Microbatches that are run: more would not make memory colder. */
const mostMicrobatches = 16;
/** Seconds for all rows, after which no further round begins, but for the first three; where rows have to take many turns, the first one. */
const mostSeconds = 6;
const leastRounds = 3;
const manyTurns = 4;

/** The rows of a schedule as lists of forwards and backwards; overlapped ones one after the other. */
export function rowsOf(schedule: Schedule): RowAction[][] {
  const rows = Array.from({ length: schedule.ranks }, (): RowAction[] => []);
  schedule.order.forEach((row, rank) => {
    for (const { kind, stage, microbatch } of row.flatMap((cell) => (cell === null ? [] : (cell.parts ?? [cell]))))
      if ((kind === 'F' || kind === 'I' || kind === 'W' || kind === 'B') && Number(microbatch) < mostMicrobatches)
        rows[rank]?.push({ stage, kind, microbatch: Number(microbatch) });
  });
  return rows;
}

/** A row for each stage alone, one microbatch after the other: in full, then in halves. */
export function rowsAlone(stages: number): RowAction[][] {
  return Array.from({ length: stages }, (_, stage) =>
    (['F', 'B', 'F', 'I', 'W'] as const).map((kind, i): RowAction => ({ stage, kind, microbatch: i < 2 ? 0 : 1 })),
  );
}

/** What rows are run with. */
export interface RehearsalOptions {
  readonly rounds: number;
  /** Ranks that run rows side by side. */
  readonly group: distributed.ProcessGroup | null;
}

/**
 * Runs rows and returns the times of every stage: means over the rounds of usual length and over the microbatches.
 * Ranks of a group each run a row at the same time, and all are told all times.
 */
export function rehearse(
  runs: readonly StageRun[],
  rows: readonly (readonly RowAction[])[],
  { rounds, group }: RehearsalOptions,
): StageTimes[] {
  const times: StageTimes[] = runs.map(() => ({}));
  const [rank, size] = group === null ? [0, 1] : [group.rank, group.size];
  const turns = Math.ceil(rows.length / size);
  const least = turns > manyTurns ? 1 : leastRounds;
  for (let first = 0; first < rows.length; first += size) {
    const row = new Row(runs, rows[first + rank] ?? []);
    const begin = performance.now();
    row.round(); // warms up
    const seconds = agreed(group, (performance.now() - begin) / 1000);
    const fitting = Math.floor(mostSeconds / turns / Math.max(seconds, 1e-6));
    const count = Math.min(rounds, Math.max(least, fitting));
    for (let round = 0; round < count; round++) {
      group?.barrier();
      row.round();
    }
    for (const [stage, found] of row.times()) times[stage] = found;
  }
  if (group === null) return times;
  const all = group.allGatherObject<distributed.Json>(times as distributed.Json) as unknown as StageTimes[][];
  return times.map((_, stage) => Object.assign({}, ...all.map((one) => one[stage])) as StageTimes);
}

/** The longest time of all ranks. */
function agreed(group: distributed.ProcessGroup | null, seconds: number): number {
  return group === null ? seconds : Math.max(...group.allGatherObject<number>(seconds));
}

/** One row and what its actions took, round by round. */
class Row {
  private readonly runs: readonly StageRun[];
  private readonly actions: readonly RowAction[];
  private readonly taken: number[][];
  private readonly ready: number[][];
  private isWarm = false;

  constructor(runs: readonly StageRun[], actions: readonly RowAction[]) {
    this.runs = runs;
    this.actions = actions;
    this.taken = actions.map(() => []);
    this.ready = actions.map(() => []);
  }

  /** Runs the row once; the first time only warms up. */
  round(): void {
    const stages = new Set(this.actions.map(({ stage }) => stage));
    scope(() => {
      const gradients = new Map<string, Tensor[][]>();
      for (const { stage, kind, microbatch } of this.actions) {
        const run = this.runs[stage]!;
        if (kind === 'F') run.arrive(microbatch);
        // The first round does not know yet what gradients will be for.
        else if (kind !== 'W' && this.isWarm) gradients.set(`${stage} ${microbatch}`, run.gradients());
      }
      this.actions.forEach((action, i) => this.perform(action, i, gradients));
    });
    for (const stage of stages) this.runs[stage]?.forget();
    this.isWarm = true;
  }

  private perform({ stage, kind, microbatch: m }: RowAction, i: number, known: ReadonlyMap<string, Tensor[][]>): void {
    const run = this.runs[stage]!;
    const grads = kind === 'B' || kind === 'I' ? (known.get(`${stage} ${m}`) ?? run.gradients()) : [];
    let ready = Number.NaN;
    const begin = run.now();
    scope(() => {
      if (kind === 'F') run.forward(m);
      else if (kind === 'W') run.weights(m);
      else ready = run.backward(m, { full: kind === 'B', grads });
    });
    const seconds = run.now() - begin;
    if (!this.isWarm) return;
    this.taken[i]?.push(seconds);
    if (kind === 'B') this.ready[i]?.push(ready - begin);
  }

  /** The stages of the row and what was found. */
  times(): Map<number, StageTimes> {
    const found = new Map<number, StageTimes>();
    const lengths = (this.taken[0] ?? []).map((_, round) => this.taken.reduce((sum, times) => sum + times[round]!, 0));
    const rounds = usual(lengths);
    for (const stage of new Set(this.actions.map((action) => action.stage))) {
      const of = (kind: TimedKind, values: readonly (readonly number[])[]): number | undefined => {
        const all = this.actions.flatMap((action, i) =>
          action.stage === stage && action.kind === kind ? rounds.map((round) => values[i]![round]!) : [],
        );
        return all.length === 0 ? undefined : all.reduce((sum, each) => sum + each, 0) / all.length;
      };
      const [F, I, W, B] = (['F', 'I', 'W', 'B'] as const).map((kind) => of(kind, this.taken));
      const inputGradient = of('B', this.ready);
      found.set(stage, {
        ...(F === undefined ? {} : { F }),
        ...(I === undefined ? {} : { I }),
        ...(W === undefined ? {} : { W }),
        ...(B === undefined ? {} : { B }),
        ...(inputGradient === undefined ? {} : { inputGradient }),
      });
    }
    return found;
  }
}
