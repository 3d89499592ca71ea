/**
 * @file What the conformance of data parallelism runs: every schedule with every way of dividing, and the comparison with plain
 * training on the whole batch. The suite runs a part of it, `scripts/parallel-conformance.mjs` all of it.
 */
import { buildSchedule } from '@pipewright/schedule';

/** A run on a mesh; see ranks/replica.mjs. */
export interface Case {
  readonly schedule: string;
  readonly pp: number;
  readonly dp: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly rows: readonly number[];
  readonly accumulate: number;
  readonly wrap?: Wrap;
  /** Groups of shards that hold the same. */
  readonly replicas?: number;
  readonly clip?: number;
  readonly norm?: number | 'inf';
  readonly order?: object;
  readonly checkpoint?: boolean;
  readonly bucketCapMb?: number;
  readonly evaluate?: boolean;
  readonly divisor?: boolean;
  readonly columns?: boolean;
  readonly units?: boolean;
  readonly reshardAfterForward?: boolean;
  readonly keepGrads?: boolean;
  /** Without a pipeline and without replicas. */
  readonly plain?: boolean;
}

/** How stages are divided among the ranks beside the pipeline. */
export type Wrap = 'replicate' | 'optimizer' | 'gradients' | 'parameters';

/** Where a part lies in the whole. */
interface Part {
  readonly globalShape: readonly number[];
  readonly dim: number;
  readonly offset: number;
  readonly length: number;
}

type Values = Readonly<Record<string, readonly number[] | null>>;

/** What a rank found. */
export interface Result {
  readonly grads: Values;
  readonly weights: Values;
  readonly norms: readonly number[];
  readonly losses: readonly number[];
  readonly parts?: Readonly<Record<string, Part>>;
  readonly reductions: readonly (readonly [number, number])[];
  readonly gathers: readonly (readonly [number, number])[];
  readonly planned: number;
  readonly mesh: string;
}

/** The schedules, with their stages on two ranks. */
export const schedules = [
  ['GPipe', 2],
  ['1F1B', 2],
  ['ZB1P', 2],
  ['Interleaved1F1B', 4],
  ['LoopedBFS', 4],
  ['InterleavedZeroBubble', 4],
  ['ZBVZeroBubble', 4],
  ['DualPipeV', 4],
  ['random', 4],
] as const;

/** The ways to divide: replicas, three levels of shards, and shards within, replicas across. */
export const ways: readonly { readonly wrap: Wrap; readonly replicas?: number }[] = [
  { wrap: 'replicate' },
  { wrap: 'optimizer' },
  { wrap: 'gradients' },
  { wrap: 'parameters' },
  { wrap: 'parameters', replicas: 2 },
];

const norms = [1, 2, 3, 'inf'] as const;

/** One case: unequal rows everywhere, and what else differs follows from the case. */
export function caseOf(
  [schedule, stages]: (typeof schedules)[number],
  { wrap, replicas = 1 }: (typeof ways)[number],
  accumulate: number,
): Case {
  const dp = 2 * replicas;
  return {
    schedule,
    stages,
    wrap,
    replicas,
    accumulate,
    pp: 2,
    dp,
    microbatches: 4,
    rows: [8, 13, 5, 9].slice(0, dp),
    checkpoint: schedule === '1F1B' || schedule === 'ZBVZeroBubble',
    evaluate: accumulate === 2 || schedule === 'LoopedBFS',
    divisor: schedule === 'GPipe' || schedule === 'DualPipeV',
    columns: schedule === 'ZB1P',
    units: schedule === 'Interleaved1F1B',
    reshardAfterForward: schedule === 'InterleavedZeroBubble' || schedule === 'random',
    keepGrads: schedule === 'LoopedBFS' && accumulate === 1,
    ...(accumulate === 2 && {
      clip: 0.05,
      norm: norms[schedules.findIndex(([name]) => name === schedule) % norms.length] as number | 'inf',
    }),
    bucketCapMb: 1e-4,
    ...(schedule === 'random' && { order: randomOrder(stages, 4, 20) }),
  };
}

/** A valid order drawn at random: at every turn a rank does any of what it could do. */
export function randomOrder(stages: number, microbatches: number, seed: number): object {
  const ranks = 2;
  const { stageToRank } = buildSchedule('Interleaved1F1B', { ranks, stages, microbatches });
  let state = seed;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const done = new Set<string>();
  const order: string[][] = Array.from({ length: ranks }, () => []);
  const open = (): string[] => {
    const found: string[] = [];
    for (let stage = 0; stage < stages; stage++)
      for (let m = 0; m < microbatches; m++) {
        const has = (kind: string, at: number): boolean => done.has(`${at}${kind}${m}`);
        if (!has('F', stage) && (stage === 0 || has('F', stage - 1))) found.push(`${stage}F${m}`);
        if (has('F', stage) && !has('I', stage) && (stage === stages - 1 || has('I', stage + 1)))
          found.push(`${stage}I${m}`);
        if (has('I', stage) && !has('W', stage)) found.push(`${stage}W${m}`);
      }
    return found;
  };
  for (let choices = open(); choices.length > 0; choices = open()) {
    const cell = choices[random(choices.length)] as string;
    done.add(cell);
    order[stageToRank[Number(cell[0])] as number]?.push(cell);
  }
  return { name: 'random', ranks, stages, microbatches, stageToRank: [...stageToRank], order };
}

/** What is wrong with the results of a case's ranks, compared with plain training; empty where nothing is. */
export function problemsOf(one: Case, ranks: readonly Result[], want: Result, tolerance = 1e-12): string[] {
  const problems: string[] = [];
  const seen = new Set<string>();
  ranks.forEach((got, rank) => {
    const where = `${one.schedule}, ${one.wrap ?? 'replicate'} x ${one.replicas ?? 1}, ${one.accumulate} accumulated, rank ${rank}`;
    for (const what of ['grads', 'weights'] as const)
      for (const [name, values] of Object.entries(got[what])) {
        const whole = want[what][name] ?? null;
        const wanted = whole === null ? null : partOf(whole, got.parts?.[name]);
        seen.add(name);
        if (values === null || wanted === null) {
          if (values !== wanted) problems.push(`${where}: ${what} ${name} is ${values === null ? 'missing' : 'there'}`);
        } else if (values.length !== wanted.length)
          problems.push(`${where}: ${what} ${name} has ${values.length} numbers, not ${wanted.length}`);
        else {
          const off = values.reduce((most, value, i) => Math.max(most, Math.abs(value - (wanted[i] as number))), 0);
          if (!(off <= tolerance)) problems.push(`${where}: ${what} ${name} is off by ${off}`);
        }
      }
    got.norms.forEach((norm, at) => {
      const wanted = want.norms[at] as number;
      if (!(Math.abs(norm - wanted) <= tolerance * Math.max(1, wanted)))
        problems.push(`${where}: the norm of step ${at} is ${norm}, not ${wanted}`);
    });
    if (got.norms.length !== want.norms.length) problems.push(`${where}: ${got.norms.length} norms`);
    if (got.reductions.length !== one.stages / one.pp || got.reductions.some(([, count]) => count !== 3))
      problems.push(`${where}: reductions by stage are ${JSON.stringify(got.reductions)}, one a step was due`);
  });
  if (seen.size !== Object.keys(want.weights).length)
    problems.push(`${one.schedule}: only ${seen.size} parameters seen`);
  problems.push(...lossProblems(one, ranks, want, tolerance));
  return problems;
}

/** Losses of microbatches, weighted as in the step, are those of the whole batch. */
function lossProblems(one: Case, ranks: readonly Result[], want: Result, tolerance: number): string[] {
  const totals = want.losses.map(() => 0);
  const all = one.rows.reduce((sum, rows) => sum + rows, 0);
  const last = ranks.filter(({ losses }) => losses.length > 0);
  if (last.length !== one.dp) return [`${one.schedule}: losses on ${last.length} ranks, not ${one.dp}`];
  last.forEach(({ losses }, replica) => {
    const sizes = cut(one.rows[replica] as number, one.microbatches);
    losses.forEach((loss, i) => {
      const weight = one.divisor === true ? 1 / (3 * all) : (sizes[i % one.microbatches] as number) / all;
      totals[Math.floor(i / one.microbatches)]! += weight * loss;
    });
  });
  return totals.flatMap((total, step) =>
    Math.abs(total - (want.losses[step] as number)) <= tolerance
      ? []
      : [`${one.schedule}, ${one.wrap}: the loss of step ${step} is ${total}, not ${want.losses[step]}`],
  );
}

/** Rows of the microbatches of a batch. */
function cut(rows: number, count: number): number[] {
  const each = Math.floor(rows / count);
  return Array.from({ length: count }, (_, i) => each + (i < rows % count ? 1 : 0));
}

/** The numbers of a part in those of the whole, row by row. */
function partOf(whole: readonly number[], part: Part | undefined): readonly number[] {
  if (part === undefined) return whole;
  const { globalShape, dim, offset, length } = part;
  const inner = globalShape.slice(dim + 1).reduce((product, size) => product * size, 1);
  const extent = globalShape[dim] as number;
  return whole.filter((_, i) => {
    const at = Math.floor(i / inner) % extent;
    return at >= offset && at < offset + length;
  });
}
