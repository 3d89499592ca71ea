/** @file Functions that no module covers, against what PyTorch gave (testdata/nn/functional.json), and their errors. */
import { readFileSync } from 'node:fs';
import { expect, test, vi } from 'vitest';
import {
  type DTypeName,
  float64,
  manualSeed,
  nn,
  ones,
  randn,
  scope,
  Tensor,
  TorchError,
  tensor,
} from '../../index.ts';

const F = nn.functional;

interface Stored {
  readonly shape: readonly number[];
  readonly dtype: DTypeName;
  readonly data: readonly (number | boolean)[];
}

interface Case {
  readonly name: string;
  readonly args: readonly unknown[];
  readonly options: Readonly<Record<string, unknown>>;
  readonly result: Stored;
}

const cases = JSON.parse(
  readFileSync(new URL('../../../../../testdata/nn/functional.json', import.meta.url), 'utf8'),
) as Case[];

function isStored(value: unknown): value is Stored {
  return typeof value === 'object' && value !== null && 'data' in value;
}

function decode(value: unknown): unknown {
  return isStored(value) ? tensor([...value.data], { dtype: value.dtype }).reshape(value.shape) : value;
}

const title = ({ name, options }: Case): string =>
  `${name} ${JSON.stringify(Object.entries(options).map(([key, value]) => [key, isStored(value) ? 'tensor' : value]))}`;

test.each(cases.map((item) => [title(item), item] as const))('%s', (_, item) => {
  scope(() => {
    manualSeed(9);
    const options = Object.fromEntries(Object.entries(item.options).map(([key, value]) => [key, decode(value)]));
    const call = (F as unknown as Record<string, (...args: unknown[]) => Tensor>)[item.name] as (
      ...args: unknown[]
    ) => Tensor;
    const got = call(...item.args.map(decode), ...(Object.keys(options).length > 0 ? [options] : []));
    expect([got.shape, got.dtype.name]).toEqual([item.result.shape, item.result.dtype]);
    Array.from(got.toTypedArray(), Number).forEach((value, i) =>
      expect(Math.abs(value - Number(item.result.data[i]))).toBeLessThanOrEqual(1e-12 * Math.abs(value) + 1e-15),
    );
  });
});

function messageOf(body: () => unknown): string {
  try {
    body();
  } catch (error) {
    if (error instanceof TorchError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'no error';
}

test('errors say what to do', () => {
  const x = ones([2, 3]);
  const mistakes: readonly (() => unknown)[] = [
    () => F.crossEntropy(x, tensor([0, 1]), { labelSmoothin: 0.1 } as object),
    () => F.mseLoss(x, x, { reduction: 'meen' as 'mean' }),
    () => F.binaryCrossEntropy(x, ones([2, 2])),
    () => F.pad(x, [1, 1], { mode: 'reflekt' as 'reflect' }),
    () => F.interpolate(ones([1, 1, 2]), {}),
    () => F.interpolate(ones([1, 1, 2]), { size: 3, mode: 'bilinear' }),
    () => F.batchNorm(ones([1, 3]), { training: true }),
    () => F.dropout(x, { p: 1.5 }),
    () => F.embedding(tensor([0]), x, { paddingIdx: 2 }),
    () => F.embeddingBag(tensor([0]), x),
    () => attention(5),
  ];
  expect(mistakes.map(messageOf)).toMatchInlineSnapshot(`
    [
      "UNKNOWN_OPTION: crossEntropy: unknown option 'labelSmoothin' (did you mean 'labelSmoothing'?); it takes reduction, weight, ignoreIndex, labelSmoothing",
      "BAD_ARGUMENT: mseLoss: reduction is 'mean', 'sum' or 'none', got 'meen' (did you mean 'mean'?)",
      "SHAPE: binaryCrossEntropy: input [2, 3] and target [2, 2] must have the same shape; reshape one of them",
      "BAD_ARGUMENT: pad: mode is one of constant, reflect, replicate, circular, got 'reflekt' (did you mean 'reflect'?)",
      "MISSING_ARGUMENT: interpolate: give one of size and scaleFactor",
      "SHAPE: interpolate: mode 'bilinear' does not resize 1 dimensions (an input of 3)",
      "SHAPE: batchNorm: more than one value per channel is needed, the input is [1, 3]; use a larger batch, or eval()",
      "BAD_ARGUMENT: dropout: the probability p must be between 0 and 1, got 1.5",
      "INDEX: embedding: paddingIdx 2 must be between -2 and 1",
      "MISSING_ARGUMENT: embeddingBag: an input of 1 dimension needs offsets, a tensor of 1 dimension",
      "SHAPE: multiHeadAttentionForward: the width (5) must be a multiple of numHeads (2)",
    ]
  `);
});

function attention(width: number): unknown {
  const x = ones([2, 1, width]);
  const weights = {
    inProjWeight: ones([3 * width, width]),
    inProjBias: null,
    outProjWeight: ones([width, width]),
    outProjBias: null,
  };
  return F.multiHeadAttentionForward(x, x, x, { ...weights, numHeads: 2 });
}

test('attention of one head is scaledDotProductAttention', () => {
  manualSeed(0);
  const x = randn([4, 1, 6], { dtype: float64 });
  const layer = new nn.MultiheadAttention(6, 1, { dtype: float64, bias: false });
  layer.outProj.loadStateDict({
    weight: tensor(
      Array.from({ length: 6 }, (_, i) => Array.from({ length: 6 }, (_, j) => Number(i === j))),
      { dtype: float64 },
    ),
  });
  const [q, k, v] = F.linear(x, layer.inProjWeight as Tensor)
    .chunk(3, -1)
    .map((part) => part.transpose(0, 1)) as [Tensor, Tensor, Tensor];
  const mask = nn.Transformer.generateSquareSubsequentMask(4, { dtype: float64 });
  const want = F.scaledDotProductAttention(q, k, v, { isCausal: true }).transpose(0, 1);
  for (const needWeights of [true, false]) {
    const [got, weights] = layer.forward(x, x, x, { attnMask: mask, needWeights });
    expect(got.allclose(want)).toBe(true);
    expect(weights === null).toBe(!needWeights);
  }
});

test('losses whose target is broadcast say so, once each', () => {
  const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
  try {
    const [x, same, column] = [randn([4, 3]), randn([4, 3]), randn([4, 1])];
    for (const loss of [F.mseLoss, F.l1Loss, F.smoothL1Loss, F.huberLoss]) {
      loss(x, same);
      expect(loss(x, column).item()).toBe(loss(x, column.expand([4, 3])).item());
      loss(x, column);
    }
    expect(warn.mock.calls.map(([message]) => String(message).split(':')[0])).toEqual([
      ...['mseLoss', 'l1Loss', 'smoothL1Loss', 'huberLoss'],
    ]);
    expect(warn.mock.calls[0]).toEqual([
      'mseLoss: the input is [4, 3] and the target [4, 1], which are broadcast to [4, 3]; that is rarely meant: give both the same shape',
      { type: 'ShapeWarning', code: 'PIPEWRIGHT_LOSS_BROADCAST' },
    ]);
  } finally {
    warn.mockRestore();
  }
});
