/** @file Steps of optimizers that all ranks make, or none: where a loss or the norm of the gradients is not finite, none does. */
import { callOp, distributed, type GradScaler, noGrad, scope, Tensor, tensor, unscoped } from '@pipewright/torch';
import { checkOptions, show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { codeOf } from '../../parallel/alike.ts';
import { rankStatus } from '../../status/rank-status.ts';
import {
  type Clipping,
  checkMaxNorm,
  clippingText,
  differentClipping,
  gradNorm,
  type RankGradients,
  scaleGrads,
} from './grad-norm.ts';
import type { FoundGradients } from './held-gradients.ts';

type ScaledOptimizer = Parameters<GradScaler['settle']>[0];

/** An optimizer of any kind. */
export interface AnyOptimizer {
  step(): unknown;
}

/** How gradients are clipped before the step. */
export interface OptimizerStepOptions {
  /** Gradients are scaled so that their norm is at most this; default: they are not. */
  readonly maxNorm?: number | undefined;
  /** The kind of norm; default 2. */
  readonly normType?: number | undefined;
}

/** The result of a step; the same on all ranks. */
export interface OptimizerStep {
  /** Norm of all gradients, before they were clipped. */
  readonly norm: number;
  /** Whether parameters and optimizers were left as they are. */
  readonly skipped: boolean;
  /** The reason, in words; null if the step was made. */
  readonly reason: string | null;
}

/** The last step with a loss that was not finite. Losses on a GPU are read only when the answer is needed, because reading waits for the GPU. */
export class LossLog {
  /** Training steps since the log was last read. */
  private steps = 0;
  /** The last of them with a loss that is not finite; 0 where there was none. */
  private bad = 0;
  /** The same for losses on a GPU, as a tensor there. */
  private later: Tensor | null = null;
  /** The last one that began without gradients on this rank. */
  private clear = 0;
  /** Whether this rank had nothing to train in the last one, and no gradient: then its gradients say nothing about other ranks. */
  private isSilent = true;
  /** Whether the log was read: several optimizers without a training step between them get the same answer. */
  private isAsked = false;

  /** Whether a loss since the last answer may have been not finite. */
  get mayBeNotFinite(): boolean {
    return !this.isAsked && (this.bad > 0 || this.later !== null);
  }

  /** A training step begins, with these gradients. */
  begin(found: FoundGradients): void {
    if (this.isAsked) this.dispose();
    this.steps++;
    this.isSilent = found === 'nothing';
    if (found !== 'held') this.clear = this.steps;
  }

  /** Takes the losses of that step; `values` are the same as numbers, if they were read already. */
  add(losses: readonly Tensor[], values: readonly number[] | null = null): void {
    const elsewhere: Tensor[] = [];
    losses.forEach((loss, i) => {
      if (values === null && loss.device !== 'cpu') elsewhere.push(loss);
      else if (!Number.isFinite(values?.[i] ?? Number(loss.item()))) this.bad = this.steps;
    });
    if (elsewhere.length > 0) this.addLater(elsewhere);
  }

  private addLater(losses: readonly Tensor[]): void {
    noGrad(() =>
      scope(() => {
        const zeros = (callOp('aten::stack', [losses.map((loss) => loss.detach()), 0]) as Tensor).mul(0);
        const zero = zeros.sum().to('float32');
        const bad = callOp('aten::nan_to_num', [zero, this.steps]) as Tensor;
        if (this.later === null) this.later = unscoped(() => bad.clone());
        else this.later.copy_(callOp('aten::maximum', [this.later, bad]) as Tensor);
      }),
    );
  }

  /** The last step with a loss that is not finite, and the last one that began without gradients: Infinity if this rank has nothing to train. */
  ask(): { readonly bad: number; readonly clear: number } {
    this.isAsked = true;
    const bad = Math.max(this.bad, this.later === null ? 0 : Number(this.later.item()));
    return { bad, clear: this.isSilent ? Number.POSITIVE_INFINITY : this.clear };
  }

  /** Forgets all steps. */
  dispose(): void {
    [this.steps, this.bad, this.clear, this.isAsked] = [0, 0, 0, false];
    this.later?.dispose();
    this.later = null;
  }
}

/** More than there are ranks: a step and a rank are compared as one number, `step * RANKS + rank`. */
const RANKS = 2 ** 20;

/** What a rank contributes to the decision. */
interface Rank {
  readonly gradients: RankGradients;
  /** All groups of this rank: a reduction over one after the other reaches all ranks. */
  readonly groups: readonly distributed.ProcessGroup[];
  readonly losses: LossLog;
  /** What has scaled the losses. */
  readonly scaler: GradScaler | undefined;
}

/** Makes the steps of optimizers, unless something is not finite on some rank. */
export function stepOptimizers(
  { gradients, groups, losses, scaler }: Rank,
  given: AnyOptimizer | readonly AnyOptimizer[],
  options: OptimizerStepOptions = {},
): OptimizerStep {
  checkOptions('stepOptimizer', options, ['maxNorm', 'normType']);
  const optimizers: readonly AnyOptimizer[] = Array.isArray(given) ? given : [given as AnyOptimizer];
  const wrong = [...optimizers].findIndex((each) => typeof (each as AnyOptimizer | null)?.step !== 'function');
  if (wrong >= 0)
    throw new PipelineError(
      'BAD_INPUT',
      `stepOptimizer: ${show(optimizers[wrong])} is no optimizer; give one, or an array of them`,
    );
  const { maxNorm } = options;
  if (maxNorm !== undefined) checkMaxNorm('stepOptimizer', maxNorm);
  for (const optimizer of optimizers) warnOfOthers(optimizer, gradients.parameters);
  for (const optimizer of optimizers) scaler?.unscaleOwn_(optimizer as ScaledOptimizer);
  const rank = distributed.isInitialized() ? distributed.getRank() : 0;
  const clipping: Clipping = { where: 'stepOptimizer', maxNorm, normType: options.normType };
  const norm = gradNorm({ ...gradients, scaled: stillScaled(gradients.parameters, scaler) }, clipping);
  const code = codeOf(clippingText(clipping));
  const { bad, clear } = losses.ask();
  const [lastBad, leastClear, notFinite, codes, negative] = largest(groups, [
    bad * RANKS + rank,
    -clear,
    Number.isFinite(norm) ? -1 : rank,
    ...[code, -code],
  ]) as [number, number, number, number, number];
  if (codes !== -negative) throw differentClipping(clipping);
  // A loss does not count any more if all ranks with trainable parameters have begun a later step without gradients.
  const counts = lastBad >= RANKS && (leastClear === Number.NEGATIVE_INFINITY || lastBad >= -leastClear * RANKS);
  const reason = reasonOf(counts ? lastBad % RANKS : -1, notFinite);
  if (reason === null) {
    if (maxNorm !== undefined) scaleGrads(gradients, norm, maxNorm);
    for (const optimizer of optimizers) optimizer.step();
  }
  for (const optimizer of optimizers) scaler?.settle(optimizer as ScaledOptimizer, reason !== null);
  return { norm, skipped: reason !== null, reason };
}

/** Optimizers whose parameters were compared with those of the stages. */
const compared = new WeakSet<AnyOptimizer>();

/** Says so where an optimizer has nothing that the stages learn: it was made from another module, and nothing would be trained. */
function warnOfOthers(optimizer: AnyOptimizer, parameters: readonly Tensor[]): void {
  if (compared.has(optimizer)) return;
  compared.add(optimizer);
  const { paramGroups } = optimizer as Partial<ScaledOptimizer>;
  if (paramGroups === undefined) return;
  const own = [...paramGroups].flatMap(({ params }) => [...params]);
  const known = new Set<Tensor>(parameters);
  if (own.some((parameter) => known.has(parameter)) || scope(() => own.some(({ grad }) => grad !== null))) return;
  process.emitWarning(
    `stepOptimizer: none of the ${own.length} parameters of the optimizer is in a stage of this rank, and none has a gradient, so its steps change nothing; make it from the parameters of the stages: stages.flatMap(({ module }) => module.parameters())`,
    { code: 'PIPEWRIGHT_OTHER_PARAMETERS' },
  );
}

/** Parameters whose gradients still have the scale: those of optimizers that step later. */
function stillScaled(parameters: readonly Tensor[], scaler: GradScaler | undefined): RankGradients['scaled'] {
  if (scaler?.enabled !== true) return undefined;
  const unscaled = new Set<Tensor>();
  for (const { paramGroups } of scaler.unscaledOptimizers())
    for (const { params } of paramGroups) for (const parameter of params) unscaled.add(parameter);
  const rest = scope(() => parameters.filter((parameter) => !unscaled.has(parameter) && parameter.grad !== null));
  return rest.length === 0 ? undefined : { parameters: new Set(rest), scale: scaler.getScale() };
}

function reasonOf(loss: number, norm: number): string | null {
  if (loss >= 0) return `a loss on rank ${loss} is not finite`;
  return norm >= 0 ? `the norm of the gradients on rank ${norm} is not finite` : null;
}

/** The largest of numbers of all ranks. */
function largest(groups: readonly distributed.ProcessGroup[], mine: readonly number[]): readonly number[] {
  return groups.reduce((values, group) => {
    rankStatus.set({ action: 'stepOptimizer', waitingFor: 'all' });
    const found = scope(() => {
      const all = tensor([...values], { dtype: 'float64', device: group.backend === 'nccl' ? 'cuda' : 'cpu' });
      group.allReduce(all, { op: 'max' });
      return all.toArray() as number[];
    });
    rankStatus.set({ action: 'stepOptimizer' });
    return found;
  }, mine);
}
