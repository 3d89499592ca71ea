/** @file Which of many possible borders make stages that take equally long: the longest stage is made as short as possible. */
import { PipelineError } from '../base/errors.ts';

/** A chain of steps to be divided; `i` stands for the place before step `i`. */
export interface BalanceProblem {
  readonly stages: number;
  /** Seconds of each step's forward. */
  readonly costs: readonly number[];
  /** Bytes that each step adds to what its stage holds. */
  readonly memory: readonly number[];
  /** Bytes that are sent when a border is before a step. */
  readonly crossing: readonly number[];
  /** Whether a border may be before a step. */
  readonly allowed: readonly boolean[];
  readonly memoryLimit?: number | undefined;
}

/** A backward takes about twice as long as its forward. */
const passes = 3;
const secondsPerByte = 1 / 10e9;
/** Places looked at; of more, those where least is sent are taken. */
const mostPlaces = 600;

/** The steps that begin stages 1, 2, ...: as many as stages, less one. */
export function chooseBorders(problem: BalanceProblem): number[] {
  const { stages, costs, memory, memoryLimit = Infinity } = problem;
  if (stages === 1) return [];
  const places = candidatePlaces(problem);
  if (places.length < stages - 1)
    throw new PipelineError(
      'TOO_MANY_STAGES',
      `cutBalanced: the model can be split into at most ${places.length + 1} stages, not ${stages}`,
      { stages },
    );
  const ends = [0, ...places, costs.length];
  const cost = prefixSums(costs);
  const held = prefixSums(memory);
  const send = (place: number): number =>
    place === 0 || place === costs.length ? 0 : 2 * problem.crossing[place]! * secondsPerByte;
  /** Seconds of the stage between two places; infinite where it does not fit. */
  const stageCost = (from: number, to: number): number => {
    if (held[to]! - held[from]! > memoryLimit) return Infinity;
    return passes * (cost[to]! - cost[from]!) + send(from) + send(to);
  };
  const { longest, borders } = bestDivision(ends, stages, { stageCost, send });
  if (longest === Infinity)
    throw new PipelineError(
      'MEMORY_LIMIT',
      `cutBalanced: no division into ${stages} stages keeps every stage within ${memoryLimit} bytes of parameters and optimizer state; give more stages or a higher limit`,
      { stages, memoryLimit },
    );
  return borders;
}

/** What a division is judged by, in seconds: the longest stage, then all that is sent. */
interface Judged {
  readonly longest: number;
  readonly sent: number;
}

interface DivisionCosts {
  stageCost(from: number, to: number): number;
  send(place: number): number;
}

/** The best division into stages that end at some of the places `ends`, by dynamic programming over the number of stages. */
function bestDivision(
  ends: readonly number[],
  stages: number,
  { stageCost, send }: DivisionCosts,
): { readonly longest: number; readonly borders: number[] } {
  const last = ends.length - 1;
  // best[j]: when the first k stages end at place j.
  let best: Judged[] = ends.map((end, j) => ({ longest: j === 0 ? 0 : stageCost(0, end), sent: send(end) }));
  /** For 2, 3, ... stages: the place before the last of them, by the place where it ends. */
  const before: number[][] = [];
  for (let k = 2; k <= stages; k++) {
    const next: Judged[] = ends.map(() => ({ longest: Infinity, sent: Infinity }));
    const chosen = new Array<number>(ends.length).fill(-1);
    for (let j = k; j <= last; j++) {
      if (j === last && k < stages) continue;
      for (let i = k - 1; i < j; i++) {
        const longest = Math.max(best[i]!.longest, stageCost(ends[i]!, ends[j]!));
        const sent = best[i]!.sent + send(ends[j]!);
        const found = next[j]!;
        if (longest < found.longest || (longest === found.longest && sent < found.sent)) {
          next[j] = { longest, sent };
          chosen[j] = i;
        }
      }
    }
    best = next;
    before.push(chosen);
  }
  const borders: number[] = [];
  for (let k = before.length - 1, j = last; k >= 0; k--) {
    j = before[k]![j]!;
    borders.unshift(ends[j]!);
  }
  return { longest: best[last]!.longest, borders };
}

function candidatePlaces({ allowed, crossing, stages }: BalanceProblem): number[] {
  const places = allowed.flatMap((isAllowed, i) => (isAllowed && i > 0 ? [i] : []));
  const most = Math.max(mostPlaces, stages * 4);
  if (places.length <= most) return places;
  return places
    .sort((a, b) => crossing[a]! - crossing[b]! || a - b)
    .slice(0, most)
    .sort((a, b) => a - b);
}

function prefixSums(values: readonly number[]): number[] {
  let sum = 0;
  return [0, ...values.map((value) => (sum += value))];
}
