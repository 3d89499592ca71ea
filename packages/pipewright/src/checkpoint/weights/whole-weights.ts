/** @file Whole weights out of parts: of every sharded one, one rank that holds a part receives the others. */
import { type distributed, empty, type Tensor } from '@pipewright/torch';
import { beginOf, boxOf, elementsOf, type Part } from '../format/piece.ts';
import type { StateTensor } from '../state/state-tensors.ts';
import type { RankHoldings, WritePlan } from '../writing/plan.ts';

/** The parts of one weight, and the rank that puts them together. */
export interface WholeWeight {
  /** The key that it is stored under. */
  readonly key: string;
  readonly writer: number;
  readonly pieces: readonly { readonly rank: number; readonly at: number; readonly part: Part }[];
}

/** Who writes which weight; the same on all ranks, in the same order. */
export function wholeWeights(ranks: readonly RankHoldings[], { writes }: WritePlan): WholeWeight[] {
  const pieces = new Map<string, WholeWeight['pieces'][number][]>();
  writes.forEach((list, rank) => {
    for (const { at, key } of list) {
      const piece = { rank, at, part: ranks[rank]!.tensors[at]!.part };
      const others = pieces.get(key);
      if (others === undefined) pieces.set(key, [piece]);
      else others.push(piece);
    }
  });
  const loads = ranks.map(() => 0);
  return [...pieces].map(([key, list]) => {
    const { rank: writer } = list.reduce((best, each) => (loads[each.rank]! < loads[best.rank]! ? each : best));
    loads[writer]! += elementsOf(list[0]!.part.shape);
    return { key, writer, pieces: list };
  });
}

/** The weight as the writer has it in the end; null on the other ranks. Those that hold parts of it call this together. */
export function putTogether(
  { writer, pieces }: WholeWeight,
  weights: readonly StateTensor[],
  group: distributed.ProcessGroup | null,
): Tensor | null {
  const rank = group?.rank ?? 0;
  const own = (at: number): Tensor => weights[at]!.tensor.detach();
  if (rank !== writer) {
    for (const piece of pieces) if (piece.rank === rank) group?.send(own(piece.at).contiguous(), writer);
    return null;
  }
  const [first] = pieces;
  if (first === undefined || first.part.offset === null) return first === undefined ? null : own(first.at);
  const { dtype, device } = weights[pieces.find((piece) => piece.rank === rank)!.at]!.tensor;
  const whole = empty([...first.part.shape], { dtype });
  for (const piece of pieces) {
    const { local } = piece.part;
    const tensor = piece.rank === rank ? own(piece.at) : group!.recv(empty([...local], { dtype, device }), piece.rank);
    boxOf(whole, beginOf(piece.part), local).copy_(tensor);
  }
  return whole;
}
