/** @file Steps of optimizers that all ranks make, or none: where a loss or the norm of the gradients is not finite, none does. */
import { callOp, distributed, type GradScaler, noGrad, scope, Tensor, tensor, unscoped } from '@pipewright/torch';
import { checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { codeOf } from '../parallel/alike.ts';
import { rankStatus } from '../status/rank-status.ts';
import {
  type Clipping,
  checkMaxNorm,
  clippingText,
  differentClipping,
  gradNorm,
  type RankGradients,
  scaleGrads,
} from './grad-norm.ts';

type ScaledOptimizer = Parameters<GradScaler['settle']>[0];

/** An optimizer of any kind. */
export interface AnyOptimizer {
  step(): unknown;
}

/** How gradients are treated before the step. */
export interface OptimizerStepOptions {
  /** Gradients are scaled so that their norm is at most this; default: they are not. */
  readonly maxNorm?: number | undefined;
  /** The kind of norm; default 2. */
  readonly normType?: number | undefined;
}

/** What became of a step; the same on all ranks. */
export interface OptimizerStep {
  /** Norm of all gradients, before they were clipped. */
  readonly norm: number;
  /** Whether parameters and optimizers were left as they are. */
  readonly skipped: boolean;
  /** Why, in words; null where the step was made. */
  readonly reason: string | null;
}

/** Whether the losses computed since the last question are finite; on a GPU they are asked only then, because asking waits for it. */
export class LossLog {
  private isFinite = true;
  /** Stays zero as long as the losses on a GPU are finite. */
  private zero: Tensor | null = null;

  /** Takes the losses of a step. */
  add(losses: readonly Tensor[]): void {
    const elsewhere: Tensor[] = [];
    for (const loss of losses) {
      if (loss.device === 'cpu') this.isFinite &&= Number.isFinite(Number(loss.item()));
      else elsewhere.push(loss);
    }
    if (elsewhere.length > 0) this.addLater(elsewhere);
  }

  private addLater(losses: readonly Tensor[]): void {
    noGrad(() =>
      scope(() => {
        const sum = callOp('aten::stack', [losses.map((loss) => loss.detach()), 0]) as Tensor;
        const zero = sum.sum().mul(0);
        if (this.zero === null) this.zero = unscoped(() => zero.clone());
        else this.zero.add_(zero);
      }),
    );
  }

  /** False where it is known without asking that all are finite. */
  get mayBeNotFinite(): boolean {
    return !this.isFinite || this.zero !== null;
  }

  /** Whether all are finite. */
  areFinite(): boolean {
    return this.isFinite && (this.zero === null || Number(this.zero.item()) === 0);
  }

  clear(): void {
    this.isFinite = true;
    this.zero?.dispose();
    this.zero = null;
  }
}

/** What a rank brings to the decision. */
interface Rank {
  readonly gradients: RankGradients;
  /** All groups of this rank; asked one after the other, they connect all ranks. */
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
  for (const optimizer of optimizers) scaler?.unscaleOwn_(optimizer as ScaledOptimizer);
  const rank = distributed.isInitialized() ? distributed.getRank() : 0;
  const clipping: Clipping = { where: 'stepOptimizer', maxNorm, normType: options.normType };
  const norm = gradNorm(gradients, clipping);
  const code = codeOf(clippingText(clipping));
  const [loss, notFinite, codes, negative] = largest(groups, [
    losses.areFinite() ? -1 : rank,
    Number.isFinite(norm) ? -1 : rank,
    ...[code, -code],
  ]) as [number, number, number, number];
  if (codes !== -negative) throw differentClipping(clipping);
  losses.clear();
  const reason = reasonOf(loss, notFinite);
  if (reason === null) {
    if (maxNorm !== undefined) scaleGrads(gradients, norm, maxNorm);
    for (const optimizer of optimizers) optimizer.step();
  }
  for (const optimizer of optimizers) scaler?.settle(optimizer as ScaledOptimizer, reason !== null);
  return { norm, skipped: reason !== null, reason };
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
