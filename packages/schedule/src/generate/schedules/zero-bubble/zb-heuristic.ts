/** @file The zero-bubble heuristic: one stage per rank, forward and input work in rounds, weight work into the gaps, under a memory limit. */

import { type CostTable, resolveCosts } from '../../../costs/cost-table.ts';
import { edgeCosts } from '../../../costs/edge-costs.ts';
import { fits, limitTooLow, resolveMemoryLimit } from '../../../costs/memory-limit.ts';
import { Code } from '../../../model/packed.ts';
import { stageToRank } from '../../../model/placement.ts';
import type { Schedule, StageEdge } from '../../../model/schedule.ts';
import { ScheduleBuilder } from '../../../model/schedule-builder.ts';
import type { ScheduleShape } from '../definition.ts';
import { LeastOf } from './least-of.ts';

/** The three choices of a plan. */
interface Choices {
  /** Warm-up forwards must be over when the first gradient can come; else the last one may delay it. */
  readonly warmUpInTime: boolean;
  /** A rank two or more forwards ahead of the next one may leave one out. */
  readonly mayRest: boolean;
  /** A gap too short for a W gets one even where the idle time would do no harm. */
  readonly fillShortGaps: boolean;
}

const allChoices: readonly Choices[] = [true, false].flatMap((warmUpInTime) =>
  [true, false].flatMap((mayRest) => [true, false].map((fillShortGaps) => ({ warmUpInTime, mayRest, fillShortGaps }))),
);

/**
 * The plan of shortest span over all eight choices, and over greedy plans where the limit is below what 1F1B holds: rounds then leave the
 * last ranks with one microbatch at a time. `multiple` is the limit in microbatches per rank and rank of the pipeline (1: p
 * microbatches) where `shape.memoryLimit` is not given.
 */
export function zeroBubbleHeuristic(shape: ScheduleShape, multiple: number): Schedule {
  const { name, ranks, stages, microbatches } = shape;
  const costs = resolveCosts(name, shape.costs ?? {}, stages);
  const limits = resolveMemoryLimit(
    name,
    shape.memoryLimit,
    costs.activation.map((a) => multiple * ranks * a),
  );
  limits.forEach((limit, rank) => {
    const needed = costs.activation[rank]!;
    if (!fits(needed, limit)) throw limitTooLow(name, { rank, limit, needed, what: 'one microbatch' });
  });
  const problem: Problem = { ranks, microbatches, costs, limits, ...delaysOf(name, costs, ranks) };
  let best: Plan | null = null;
  const keep = (plan: Plan): void => {
    if (best === null || plan.span < best.span || (plan.span === best.span && plan.makespan < best.makespan))
      best = plan;
  };
  for (const choices of allChoices) keep(new Plan(problem, choices).runInRounds());
  if (isBelow1F1B(problem))
    for (const fillShortGaps of [true, false])
      keep(new Plan(problem, { ...allChoices[0]!, fillShortGaps }).runGreedily());
  const builder = new ScheduleBuilder({
    ...shape,
    stageToRank: stageToRank({ ranks, stages }),
    capacity: 3 * microbatches,
  });
  best!.rows.forEach((row, rank) => {
    const next = [0, 0, 0, 0];
    for (const code of row) builder.push(rank, code, rank, next[code]!++);
  });
  return builder.finish();
}

interface Problem {
  readonly ranks: number;
  readonly microbatches: number;
  readonly costs: CostTable;
  readonly limits: Float64Array;
  /** Delay of the activation into a rank, and of the gradient into it. */
  readonly forwardDelay: Float64Array;
  readonly backwardDelay: Float64Array;
}

function delaysOf(caller: string, costs: CostTable, ranks: number): Pick<Problem, 'forwardDelay' | 'backwardDelay'> {
  const edges = Array.from({ length: ranks - 1 }, (_, s): StageEdge => [s, s + 1]);
  const table = edgeCosts(caller, costs, { edges, stageToRank: Array.from({ length: ranks }, (_, r) => r) });
  const forwardDelay = new Float64Array(ranks);
  const backwardDelay = new Float64Array(ranks);
  for (let e = 0; e < ranks - 1; e++) {
    forwardDelay[e + 1] = table.forwardOccupancy[e]! + table.forwardLatency[e]!;
    backwardDelay[e] = table.backwardOccupancy[e]! + table.backwardLatency[e]!;
  }
  return { forwardDelay, backwardDelay };
}

/** Whether a rank may hold less than under 1F1B. */
function isBelow1F1B({ ranks, microbatches, costs, limits }: Problem): boolean {
  return limits.some((limit, rank) => !fits(Math.min(ranks - rank, microbatches) * costs.activation[rank]!, limit));
}

/** One run of the heuristic. Ranks are stages here; work of a kind is done in the order of microbatches. */
class Plan {
  /** Codes of each rank's actions; the microbatch is the count so far. */
  readonly rows: number[][];
  private readonly problem: Problem;
  private readonly choices: Choices;
  private readonly durations: readonly Float64Array[];
  // Per rank: how many F, I, W are placed (by code), end of the last action, start of the first, memory held, time waited.
  private readonly placed: readonly Int32Array[];
  private readonly now: Float64Array;
  private readonly first: Float64Array;
  private readonly held: Float64Array;
  private readonly waited: Float64Array;
  private mostWaited = 0;
  // Ends of F and I by rank * microbatches + microbatch; Infinity where they are not placed.
  private readonly forwardEnd: Float64Array;
  private readonly gradientEnd: Float64Array;

  constructor(problem: Problem, choices: Choices) {
    const { ranks, microbatches, costs } = problem;
    this.problem = problem;
    this.choices = choices;
    this.rows = Array.from({ length: ranks }, () => []);
    this.durations = [costs.F, costs.F, costs.I, costs.W];
    this.placed = [0, 1, 2, 3].map(() => new Int32Array(ranks));
    this.now = new Float64Array(ranks);
    this.first = new Float64Array(ranks);
    this.held = new Float64Array(ranks);
    this.waited = new Float64Array(ranks);
    this.forwardEnd = new Float64Array(ranks * microbatches).fill(Number.POSITIVE_INFINITY);
    this.gradientEnd = new Float64Array(ranks * microbatches).fill(Number.POSITIVE_INFINITY);
  }

  /** Longest time from a rank's first action to its last. */
  get span(): number {
    return this.now.reduce((longest, end, rank) => Math.max(longest, end - this.first[rank]!), 0);
  }

  get makespan(): number {
    return Math.max(...this.now);
  }

  /** The heuristic: in each round every rank does one F, if it has any left, and one I. */
  runInRounds(): this {
    const { ranks, microbatches } = this.problem;
    this.warmUp();
    for (let round = 1; round < microbatches; round++) {
      const does = this.ranksWithForward();
      for (let rank = 0; rank < ranks; rank++) {
        if (does[rank] === 0) continue;
        this.makeRoom(rank);
        if (rank > 0) this.fillUntil(rank, this.activationAt(rank, this.placed[Code.F]![rank]!));
        this.place(rank, Code.F);
      }
      for (let rank = ranks - 1; rank >= 0; rank--) {
        if (rank < ranks - 1) this.fillUntil(rank, this.gradientAt(rank, round));
        if (rank === 0 && this.placed[Code.F]![0] === microbatches) this.drain(0, round);
        this.place(rank, Code.I);
      }
    }
    for (let rank = 0; rank < ranks; rank++) this.drain(rank, microbatches);
    return this;
  }

  /** Always what can start first; I before F, and W where they cannot start before it ends, or where F needs its memory. */
  runGreedily(): this {
    const { ranks, microbatches } = this.problem;
    const starts = new LeastOf(ranks);
    for (let rank = 0; rank < ranks; rank++) starts.set(rank, this.next(rank).start);
    for (let left = 3 * ranks * microbatches; left > 0; left--) {
      const rank = starts.index;
      this.place(rank, this.next(rank).code);
      for (let r = Math.max(rank - 1, 0); r <= Math.min(rank + 1, ranks - 1); r++) starts.set(r, this.next(r).start);
    }
    return this;
  }

  /** What a rank does next, and when, as far as it is known; Infinity where it waits for others. */
  private next(rank: number): { code: number; start: number } {
    const { ranks, microbatches, costs, limits } = this.problem;
    const now = this.now[rank]!;
    const [forwards, inputs] = [this.placed[Code.F]![rank]!, this.placed[Code.I]![rank]!];
    const forward =
      forwards === microbatches ? Number.POSITIVE_INFINITY : rank === 0 ? now : this.activationAt(rank, forwards);
    const input =
      inputs === forwards ? Number.POSITIVE_INFINITY : rank === ranks - 1 ? now : this.gradientAt(rank, inputs);
    const hasRoom = fits(this.held[rank]! + costs.activation[rank]!, limits[rank]!);
    const start = Math.max(now, hasRoom ? Math.min(input, forward) : input);
    if (this.pending(rank) > 0) {
      const makesRoom = !hasRoom && Math.max(now, forward) < input;
      const gap = start - now;
      if (makesRoom || gap >= costs.W[rank]! || (gap > 0 && this.choices.fillShortGaps))
        return { code: Code.W, start: now };
    }
    return { code: input <= start ? Code.I : Code.F, start };
  }

  /** F0 everywhere, then as many F as memory and time until the first gradient allow, then I0 everywhere. */
  private warmUp(): void {
    const { ranks, microbatches } = this.problem;
    for (let rank = 0; rank < ranks; rank++) this.place(rank, Code.F);
    const extra = this.extraForwards();
    for (let rank = 1; rank < ranks; rank++) {
      const before = extra[rank - 1]!;
      extra[rank] = Math.min(extra[rank]!, before + 1 === microbatches ? before : Math.max(0, before - 1));
    }
    for (let rank = 0; rank < ranks; rank++) for (let i = 0; i < extra[rank]!; i++) this.place(rank, Code.F);
    for (let rank = ranks - 1; rank >= 0; rank--) this.place(rank, Code.I);
  }

  /** Forwards each rank could do after its first one while the first gradient is on its way back. */
  private extraForwards(): Int32Array {
    const { ranks, microbatches, costs, limits, backwardDelay } = this.problem;
    const extra = new Int32Array(ranks);
    let gradient = this.now[ranks - 1]! + costs.I[ranks - 1]!;
    for (let rank = ranks - 2; rank >= 0; rank--) {
      const due = gradient + backwardDelay[rank]!;
      const activation = costs.activation[rank]!;
      let time = this.now[rank]!;
      while (
        extra[rank]! + 1 < microbatches &&
        fits(this.held[rank]! + activation * (extra[rank]! + 1), limits[rank]!)
      ) {
        if (this.choices.warmUpInTime ? time + costs.F[rank]! > due : time >= due) break;
        time += costs.F[rank]!;
        extra[rank]!++;
      }
      gradient = Math.max(time, due) + costs.I[rank]!;
    }
    return extra;
  }

  /** 1 for each rank that does a forward this round; a rank does one only if the next rank does, or has none left. */
  private ranksWithForward(): Uint8Array {
    const { ranks, microbatches } = this.problem;
    const forwards = this.placed[Code.F]!;
    const does = new Uint8Array(ranks);
    for (let rank = ranks - 1; rank >= 0; rank--) {
      if (forwards[rank]! >= microbatches) continue;
      if (rank + 1 < ranks && does[rank + 1] === 0) continue;
      does[rank] =
        this.choices.mayRest && rank + 1 < ranks && forwards[rank]! >= forwards[rank + 1]! + 2 && this.rests(rank)
          ? 0
          : 1;
    }
    return does;
  }

  /** Whether a rank well ahead had better leave its forward out: it would come too late for the next rank's round. */
  private rests(rank: number): boolean {
    const { costs, limits, forwardDelay } = this.problem;
    const { F, I, W, activation, retained } = costs;
    const needed = this.now[rank + 1]! + F[rank + 1]! + I[rank + 1]! + forwardDelay[rank + 1]!;
    if (this.now[rank]! >= needed) return true;
    let end = this.now[rank]! + F[rank]!;
    let held = this.held[rank]! + activation[rank]!;
    for (let w = this.placed[Code.W]![rank]!; w < this.placed[Code.I]![rank]! && !fits(held, limits[rank]!); w++) {
      end += W[rank]!;
      held -= activation[rank]! * retained[rank]!;
    }
    return end > needed && needed - this.now[rank]! <= this.slack(rank);
  }

  /** Time a rank may wait without becoming the one that waits most. */
  private slack(rank: number): number {
    return this.mostWaited - this.waited[rank]!;
  }

  /** W until there is memory for one more forward. */
  private makeRoom(rank: number): void {
    const { costs, limits } = this.problem;
    while (!fits(this.held[rank]! + costs.activation[rank]!, limits[rank]!) && this.pending(rank) > 0)
      this.place(rank, Code.W);
  }

  private pending(rank: number): number {
    return this.placed[Code.I]![rank]! - this.placed[Code.W]![rank]!;
  }

  /** W that fit before a time; one more that does not, where the rest of the gap would raise the longest wait. */
  private fillUntil(rank: number, time: number): void {
    const duration = this.problem.costs.W[rank]!;
    while (this.pending(rank) > 0 && this.now[rank]! + duration <= time) this.place(rank, Code.W);
    if (this.pending(rank) === 0 || this.now[rank]! >= time) return;
    if (this.choices.fillShortGaps || time - this.now[rank]! > this.slack(rank)) this.place(rank, Code.W);
  }

  private drain(rank: number, upTo: number): void {
    while (this.placed[Code.W]![rank]! < upTo) this.place(rank, Code.W);
  }

  private activationAt(rank: number, microbatch: number): number {
    const { microbatches, forwardDelay } = this.problem;
    return this.forwardEnd[(rank - 1) * microbatches + microbatch]! + forwardDelay[rank]!;
  }

  private gradientAt(rank: number, microbatch: number): number {
    const { microbatches, backwardDelay } = this.problem;
    return this.gradientEnd[(rank + 1) * microbatches + microbatch]! + backwardDelay[rank]!;
  }

  /** Puts the next F, I or W of a rank behind what it has. */
  private place(rank: number, code: number): void {
    const { ranks, microbatches, costs } = this.problem;
    const microbatch = this.placed[code]![rank]!;
    const free = this.now[rank]!;
    let start = free;
    if (code === Code.F && rank > 0) start = Math.max(start, this.activationAt(rank, microbatch));
    if (code === Code.I && rank < ranks - 1) start = Math.max(start, this.gradientAt(rank, microbatch));
    const end = start + this.durations[code]![rank]!;
    if (this.rows[rank]!.length === 0) this.first[rank] = start;
    else {
      this.waited[rank]! += start - free;
      if (this.waited[rank]! > this.mostWaited) this.mostWaited = this.waited[rank]!;
    }
    if (code === Code.F) this.forwardEnd[rank * microbatches + microbatch] = end;
    if (code === Code.I) this.gradientEnd[rank * microbatches + microbatch] = end;
    const activation = costs.activation[rank]!;
    const kept = activation * costs.retained[rank]!;
    this.held[rank]! += code === Code.F ? activation : code === Code.I ? kept - activation : -kept;
    this.now[rank] = end;
    this.placed[code]![rank]!++;
    this.rows[rank]!.push(code);
  }
}
