/** @file Cross entropy of a linear layer's scores; in chunks, the scores of a large vocabulary never exist all at once. */
import { checkpoint } from '../../autograd/checkpoint.ts';
import { noGrad } from '../../autograd/modes.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { cat, linear } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkWhole } from '../../base/options.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type ClassLossOptions, crossEntropy } from './loss.ts';

/** How the batch is cut. */
export interface LinearCrossEntropyOptions {
  /** Rows whose scores exist at a time; they are computed again in backward. */
  batchChunkSize: number;
}

/** What linearCrossEntropy can be told. */
export interface LinearCrossEntropySettings extends Omit<ClassLossOptions, 'ignoreIndex'> {
  /** Shaped as the classes: [C], or [C, d1, d2...]. */
  linearBias?: Tensor | null | undefined;
  ignoreIndex?: number | null | undefined;
  labelSmoothing?: number | undefined;
  /** Chunks, or null for all rows at once. */
  options?: LinearCrossEntropyOptions | null | undefined;
}

const known = ['linearBias', 'weight', 'reduction', 'ignoreIndex', 'labelSmoothing', 'options'];

/**
 * `crossEntropy` of `linear(input, linearWeight)`; the weight is [C, inFeatures], or [C, d1, d2..., inFeatures].
 *
 * @example F.linearCrossEntropy(hidden, head.weight, labels, { options: { batchChunkSize: 1024 } })
 */
export function linearCrossEntropy(
  input: Tensor,
  linearWeight: Tensor,
  target: Tensor,
  settings?: LinearCrossEntropySettings,
): Tensor {
  checkTensors('linearCrossEntropy', { input, linearWeight, target });
  checkOptions('linearCrossEntropy', settings, known);
  const { linearBias = null, weight, reduction = 'mean', ignoreIndex, labelSmoothing, options } = settings ?? {};
  const [classes, ...rest] = linearWeight.shape as [number, ...number[]];
  const width = rest.pop()!;
  const flatWeight = linearWeight.reshape([-1, width]);
  const flatBias = linearBias?.reshape([-1]) ?? null;
  const scores = (rows: Tensor): Tensor =>
    linear(rows, flatWeight, flatBias).reshape([...rows.shape.slice(0, -1), classes, ...rest]);
  const told = { weight: weight ?? null, ignoreIndex: ignoreIndex ?? -100, labelSmoothing: labelSmoothing ?? 0 };
  if (options === undefined || options === null || input.dim() < 2)
    return crossEntropy(scores(input), target, { ...told, reduction });

  checkOptions('linearCrossEntropy: options', options, ['batchChunkSize']);
  checkWhole('linearCrossEntropy: batchChunkSize', options.batchChunkSize, 1);
  if (target.size(0) !== input.size(0))
    throw new TorchError(
      'SHAPE',
      `linearCrossEntropy: the input has ${input.size(0)} rows, the target ${target.size(0)}; they must be equal`,
    );
  const targets = target.split(options.batchChunkSize);
  const losses = input
    .split(options.batchChunkSize)
    .map((rows, i) =>
      checkpoint(
        (part: Tensor, wanted: Tensor) =>
          crossEntropy(scores(part), wanted, { ...told, reduction: reduction === 'none' ? 'none' : 'sum' }),
        [rows, targets[i]!],
      ),
    );
  if (reduction === 'none') return cat(losses);
  const sum = losses.reduce((total, loss) => total.add(loss));
  return reduction === 'sum' ? sum : sum.div(noGrad(() => divisor(target, told, classes)));
}

/** What the sum of losses is divided by for their mean: the weights of the classes that count, or their number. */
function divisor(
  target: Tensor,
  { weight, ignoreIndex }: { weight: Tensor | null; ignoreIndex: number },
  classes: number,
): Tensor | number {
  if (target.isFloatingPoint()) return target.numel() / classes;
  const counts = target.ne(ignoreIndex);
  if (weight === null) return counts.sum();
  return weight
    .take(target.clamp(0, classes - 1))
    .mul(counts)
    .sum();
}
