/** @file What a stage holds for one microbatch between its forward and its last backward. */
import {
  type BackwardRun,
  type GradientTarget,
  getGradientEdge,
  keep,
  Tensor,
  type WeightBackward,
} from '@pipewright/torch';
import { tensorsIn } from '../base/tree.ts';
import type { MicrobatchRuns } from './statistics.ts';

/** What arrived from one source for one microbatch. */
interface Arrived {
  readonly source: number;
  /** Empty once they are not needed any more. */
  values: readonly unknown[];
  /** The tensors whose gradients the source waits for. */
  leaves: readonly Tensor[];
  /** Their gradients, from the backward until they are sent. */
  grads: readonly (Tensor | null)[] | null;
}

/** What was sent to one destination for one microbatch. */
interface Sent {
  readonly destination: number;
  /** The tensors whose gradients will come back; once they are sent, the edges of the graph that those gradients go to. */
  tensors: readonly GradientTarget[];
  /** Whether the gradients have come back. */
  isAnswered: boolean;
}

const none: readonly never[] = [];

/** One microbatch at a stage. Lists rather than maps: they mostly have one entry. */
export class Chunk {
  arrived: Arrived[] = [];
  outgoing: Sent[] = [];
  roots: GradientTarget[] = [];
  rootGrads: (Tensor | null)[] = [];
  /** The loss, on the last stage. */
  loss: Tensor | null = null;
  /** The weight half that a split backward has left. */
  weights: WeightBackward | (() => void) | null = null;
  /** The runs of a checkpointed module. */
  runs: MicrobatchRuns | null = null;
  /** Whether the forward has run. */
  hasRun = false;
  /** Whether a backward has begun on a thread of its own. */
  started = false;
  /** That backward; null where there is nothing to compute. */
  run: BackwardRun | null = null;
  /** Whether the activations are still there: a backward is yet to come. */
  active = true;

  /** The tensors whose gradients other stages wait for. */
  leaves(): readonly Tensor[] {
    return this.arrived.length === 1 ? this.arrived[0]!.leaves : this.arrived.flatMap((item) => item.leaves);
  }

  from(source: number): Arrived | undefined {
    for (const item of this.arrived) if (item.source === source) return item;
    return undefined;
  }

  to(destination: number): Sent | undefined {
    for (const item of this.outgoing) if (item.destination === destination) return item;
    return undefined;
  }

  sentTo(destination: number): readonly GradientTarget[] {
    return this.to(destination)?.tensors ?? none;
  }

  /** The backward begins with the loss too, if it is here: `lossGrad` is its gradient, 1 where none is given. */
  addLoss(lossGrad: Tensor | undefined): void {
    if (this.loss?.requiresGrad !== true) return;
    this.roots.push(this.loss);
    this.rootGrads.push(lossGrad?.alias() ?? null); // an alias: gradients are freed when used
  }

  /** Keeps the gradients that a backward has left in what arrived. */
  takeGrads(): void {
    for (const item of this.arrived) item.grads = keep(item.leaves.map((leaf) => leaf.grad));
  }

  /** Frees the values of what was sent to a destination: the backward needs only the edges that their gradients go to. */
  releaseSent(destination: number): void {
    for (const item of this.outgoing)
      if (item.destination === destination) item.tensors = keep(item.tensors.map(withoutValues));
  }

  /** Frees what only the backward needed. */
  dropActivations(): void {
    for (const item of this.arrived) {
      disposeAll(item.leaves.length === item.values.length ? item.leaves : tensorsIn(item.values));
      item.values = none;
      item.leaves = none;
    }
    for (const { tensors } of this.outgoing) disposeAll(tensors);
    disposeAll(this.rootGrads);
    this.loss?.dispose();
    this.outgoing = [];
    this.roots = [];
    this.rootGrads = [];
    this.loss = null;
    this.active = false;
  }

  /** Frees everything. */
  drop(): void {
    try {
      this.run?.finish();
    } catch {
      // another error is being thrown
    }
    this.dropActivations();
    for (const { grads } of this.arrived) if (grads !== null) disposeAll(grads);
    if (this.weights !== null && typeof this.weights !== 'function') this.weights.drop();
    this.runs?.dispose();
  }

  /** Whether nothing is left to do for the microbatch. */
  get isDone(): boolean {
    if (this.active || this.weights !== null) return false;
    for (const { grads } of this.arrived) if (grads !== null) return false;
    return true;
  }
}

function withoutValues(target: GradientTarget): GradientTarget {
  if (!(target instanceof Tensor)) return target;
  const edge = getGradientEdge(target);
  target.dispose();
  return edge;
}

/** Frees tensors. */
export function disposeAll(tensors: readonly (GradientTarget | null)[]): void {
  for (const tensor of tensors) tensor?.dispose();
}
