/** @file Cross entropy of scores that are many enough to go in parts (native/kernels/cross-entropy.cc), beside libtorch's own. */
import { expect, test } from 'vitest';
import { expectSame, leakFree } from '../../../testing/gradients.ts';
import { runProgram } from '../../../testing/rank-process.ts';
import {
  arange,
  callOp,
  type DTypeName,
  empty,
  grad,
  manualSeed,
  nn,
  noGrad,
  rand,
  randint,
  randn,
  savedTensorsHooks,
  type Tensor,
  tensor,
} from '../../index.ts';

const F = nn.functional;
/** 4 MiB of float32: several parts with two threads. */
const [rows, classes] = [700, 1499];
const reductions = ['none', 'mean', 'sum'] as const;

interface Setting {
  readonly dtype?: DTypeName;
  readonly reduction?: (typeof reductions)[number];
  readonly ignoreIndex?: number;
  readonly weighted?: boolean;
}

interface Case {
  readonly scores: Tensor;
  readonly target: Tensor;
  readonly ours: () => Tensor;
  readonly libtorch: () => Tensor;
}

function make({ dtype = 'float32', reduction = 'mean', ignoreIndex = -100, weighted = false }: Setting = {}): Case {
  manualSeed(5);
  const scores = randn([rows, classes]).mul(3).to({ dtype }).requiresGrad_();
  const target = randint(classes, [rows]);
  if (ignoreIndex < 0) target.set_(['0:200:3'], ignoreIndex);
  const weight = weighted ? rand([classes]).to({ dtype }) : null;
  return {
    scores,
    target,
    ours: () => F.crossEntropy(scores, target, { reduction, ignoreIndex, weight }),
    libtorch: () =>
      callOp('aten::cross_entropy_loss', [
        scores,
        target,
        weight,
        reductions.indexOf(reduction),
        ignoreIndex,
      ]) as Tensor,
  };
}

function gradientOf(scores: Tensor, loss: Tensor): Tensor {
  scores.grad = null;
  loss.backward(arange(loss.numel()).add(1).reshape(loss.shape).to({ dtype: loss.dtype }));
  return scores.grad as unknown as Tensor;
}

test.each([
  ...reductions.map((reduction): Setting => ({ reduction })),
  ...reductions.map((reduction): Setting => ({ reduction, weighted: true, ignoreIndex: 7 })),
  ...(['float64', 'bfloat16', 'float16'] as const).map((dtype): Setting => ({ dtype })),
])('the loss and the gradient are those of libtorch, bit for bit: %j', (setting) => {
  leakFree(() => {
    const { scores, ours, libtorch } = make(setting);
    const [loss, wanted] = [ours(), libtorch()];
    expectSame(loss, wanted);
    const gradient = gradientOf(scores, loss);
    expectSame(gradient, gradientOf(scores, wanted));
  });
});

test('a graph that is kept gives the same gradient again', () => {
  leakFree(() => {
    const { scores, ours } = make();
    const loss = ours();
    const [first] = grad(loss, [scores], { retainGraph: true });
    const [second] = grad(loss, [scores], { retainGraph: true });
    const [last] = grad(loss, [scores]);
    expectSame(second!, first!);
    expectSame(last!, first!);
    expect(() => grad(loss, [scores])).toThrow(/second time/);
  });
});

test('a backward through the backward is that of libtorch', () => {
  leakFree(() => {
    const { scores, ours, libtorch } = make({ dtype: 'float64', weighted: true });
    const second = (loss: Tensor): Tensor => {
      const [gradient] = grad(loss, [scores], { createGraph: true });
      return grad(gradient!.square().sum(), [scores])[0]!;
    };
    expectSame(second(ours()), second(libtorch()));
  });
});

test('scores that are changed after the loss, and used twice, keep their gradients', () => {
  leakFree(() => {
    const { scores, target } = make();
    const made = scores.mul(2);
    const gradients = [
      F.crossEntropy,
      (x: Tensor, y: Tensor) => callOp('aten::cross_entropy_loss', [x, y]) as Tensor,
    ].map((loss) => {
      const used = made.clone();
      const sum = loss(used, target).add(loss(used, target));
      noGrad(() => used.zero_());
      return grad(sum, [scores], { retainGraph: true })[0]!;
    });
    expectSame(gradients[0]!, gradients[1]!);
  });
});

test('scores that saved-tensor hooks see, or that are checked for errors, go to libtorch', () => {
  leakFree(() => {
    const { scores, target } = make();
    expect(() => F.crossEntropy(scores, tensor([1, 2]))).toThrow(/batch_size/);
    expect(F.crossEntropy(empty([0, classes]).requiresGrad_(), empty([0], { dtype: 'int64' })).item()).toBeNaN();
    const packed: number[] = [];
    savedTensorsHooks(
      (saved) => {
        packed.push(saved.numel());
        return saved;
      },
      (saved) => saved as Tensor,
      () => F.crossEntropy(scores, target).backward(),
    );
    expect(packed).toContain(rows * classes);
    const kept = scores.grad!.clone();
    expectSame(kept, gradientOf(scores, F.crossEntropy(scores, target)));
  });
});

test('a backward takes the memory of the logarithms and a part, where libtorch takes three times the scores', async () => {
  const program = new URL('../../../testing/cross-entropy-peak.mjs', import.meta.url);
  const [ours, libtorch] = await Promise.all(
    ['ours', 'libtorch'].map(async (which) => {
      const { result, stderr } = await runProgram(program, [which]);
      expect(stderr).toBe('');
      return result as number;
    }),
  );
  expect(ours).toBeLessThan(1.5);
  expect(libtorch).toBeGreaterThan(2.5);
});
