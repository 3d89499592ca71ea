/** @file Tensors without memory: forward and backward give the shapes, strides and dtypes of the real run. */
import { describe, expect, test } from 'vitest';
import {
  decode,
  decodeAll,
  decodeNamed,
  type ModuleCase,
  type OpCase,
  readCases,
  tensorsIn,
} from '../../testing/cases.ts';
import { callOp, int64, nn, ones, orgqr, randint, randn, scope, Tensor, TorchError, tensor, zeros } from '../index.ts';

type Place = 'cpu' | 'meta';

/** Strides of single elements and of empty tensors mean nothing. */
function describeTensor(x: Tensor | null): string {
  if (x === null) return 'none';
  const strides = x.stride().map((stride, i) => ((x.shape[i] as number) > 1 ? stride : '-'));
  return `${x.dtype.name} [${x.shape}] strides [${x.shape.includes(0) ? '' : strides}]`;
}

/** Backward from the sum of everything that wants a gradient. */
function backwardOfSum(outputs: readonly Tensor[]): void {
  const sums = outputs.filter((each) => each.requiresGrad).map((each) => each.sum());
  if (sums.length > 0) sums.reduce((sum, each) => sum.add(each)).backward();
}

const optional = (options: Record<string, unknown>): Record<string, unknown>[] =>
  Object.keys(options).length > 0 ? [options] : [];

/** The shape of a result, of a gradient or the counts behind an internal buffer follow from values here. */
const needsValues = new Map([
  ['aten::equal', 'a truth about values'],
  ['aten::nonzero', 'as many as are not zero'],
  ['aten::masked_select', 'as many as the mask has'],
  ['aten::bincount', 'as many as the largest value'],
  ['aten::logspace.Tensor_Tensor', 'a number read from a tensor'],
  ['aten::index_fill.int_Tensor', 'its gradient leaves out double indices'],
  ['aten::_histogramdd_bin_edges', 'edges from the smallest and the largest value'],
  ['aten::_histogramdd_from_bin_tensors', 'counts by value'],
  ['aten::_embedding_bag_forward_only', 'a buffer that depends on the kernel chosen'],
]);

describe('operators', () => {
  const run = (item: OpCase, device: Place): string[] => {
    const wanted = new Set(Object.keys(item.gradOfSum ?? {}));
    const leaves: Tensor[] = [];
    let position = 0;
    const visit = (x: Tensor): Tensor => {
      const moved = x.to({ device });
      if (!wanted.has(String(position++))) return moved;
      leaves.push(moved.requiresGrad_());
      return moved.clone(); // an operator may change it in place
    };
    const args = item.args.map((arg) => decode(item, arg, { visit }));
    const options = decodeNamed(item, { visit });
    const outputs = tensorsIn(callOp(item.op, args, 'device' in options ? { ...options, device } : options));
    backwardOfSum(outputs);
    return [...outputs, ...leaves.map((leaf) => leaf.grad)].map(describeTensor);
  };

  test('every golden call that needs no values', () => {
    const cases = readCases<OpCase>('golden/ops').filter((item) => !needsValues.has(item.op));
    expect(cases.length).toBe(622);
    for (const item of cases)
      scope(() => expect(run(item, 'meta'), `${item.op}, case ${item.case}`).toEqual(run(item, 'cpu')));
  });
});

describe('modules', () => {
  type AnyModule = nn.Module & { forward(...inputs: unknown[]): unknown };
  const run = (item: ModuleCase, device: Place): string[] => {
    const type = (nn as unknown as Record<string, new (...args: unknown[]) => AnyModule>)[item.module];
    if (type === undefined) throw new Error(`no class ${item.module}`);
    const leaves: Tensor[] = [];
    const visit = (x: Tensor): Tensor => {
      const moved = x.to({ device });
      if (moved.isFloatingPoint()) leaves.push(moved.requiresGrad_());
      return moved;
    };
    const keep = { visit: (x: Tensor): Tensor => x.to({ device }) };
    const { inputSize, hiddenSize, ...options } = decodeAll(item, item.options, keep);
    const sizes = inputSize === undefined ? [] : [inputSize, hiddenSize];
    const args = item.args.map((arg) => decode(item, arg, keep));
    const module = new type(...args, ...sizes, ...optional(options)).train(item.training).to({ device });
    const inputs = item.input.map((value) => decode(item, value, { visit }));
    const outputs = tensorsIn(module.forward(...inputs, ...optional(decodeAll(item, item.inputOptions, keep))));
    backwardOfSum(outputs);
    const grads = [...module.parameters(), ...leaves].map((each) => each.grad);
    const buffers = [...module.buffers()];
    const result = [...outputs, ...grads, ...buffers].map(describeTensor);
    module.dispose();
    return result;
  };

  test('every golden module', () => {
    const cases = readCases<ModuleCase>('golden/modules');
    expect(cases.length).toBe(334);
    for (const item of cases)
      scope(() => expect(run(item, 'meta'), `${item.module}, case ${item.case}`).toEqual(run(item, 'cpu')));
  });
});

/** A small language model: embedding, causal attention, layer norm, dropout. */
class Gpt extends nn.Module {
  readonly tokens: nn.Embedding = new nn.Embedding(50, 32);
  readonly norm: nn.LayerNorm = new nn.LayerNorm(32);
  readonly qkv: nn.Linear = new nn.Linear(32, 96);
  readonly drop: nn.Dropout = new nn.Dropout(0.1);
  readonly head: nn.Linear = new nn.Linear(32, 50, { bias: false });

  forward(ids: Tensor): Tensor {
    const x = this.tokens.forward(ids);
    const [batch, time] = ids.shape as [number, number];
    const [q, k, v] = this.qkv
      .forward(this.norm.forward(x))
      .split(32, 2)
      .map((each) => each.view([batch, time, 4, 8]).transpose(1, 2)) as [Tensor, Tensor, Tensor];
    const attended = nn.functional.scaledDotProductAttention(q, k, v, { isCausal: true });
    // A view: it fails where the attention's result is laid out otherwise than the fused kernel's.
    return this.head.forward(x.add(this.drop.forward(attended.transpose(1, 2).view([batch, time, 32]))));
  }
}

/** Convolutions, batch norm, pooling, a residual. */
class ResNet extends nn.Module {
  readonly stem: nn.Sequential = new nn.Sequential(
    new nn.Conv2d(3, 8, 7, { stride: 2, padding: 3, bias: false }),
    new nn.BatchNorm2d(8),
    new nn.ReLU(),
    new nn.MaxPool2d(3, { stride: 2, padding: 1 }),
  );
  readonly block: nn.Sequential = new nn.Sequential(
    new nn.Conv2d(8, 8, 3, { padding: 1 }),
    new nn.BatchNorm2d(8),
    new nn.ReLU(),
  );
  readonly pool: nn.AdaptiveAvgPool2d = new nn.AdaptiveAvgPool2d(1);
  readonly head: nn.Linear = new nn.Linear(8, 5);

  forward(x: Tensor): Tensor {
    const y = this.stem.forward(x) as Tensor;
    return this.head.forward(this.pool.forward(y.add(this.block.forward(y) as Tensor)).flatten(1));
  }
}

/** Depthwise convolution, hardswish, squeeze and excitation. */
class MobileNet extends nn.Module {
  readonly expand: nn.Conv2d = new nn.Conv2d(3, 12, 1, { bias: false });
  readonly depthwise: nn.Conv2d = new nn.Conv2d(12, 12, 5, { stride: 2, padding: 2, groups: 12, bias: false });
  readonly norm: nn.BatchNorm2d = new nn.BatchNorm2d(12);
  readonly squeeze: nn.Sequential = new nn.Sequential(
    new nn.AdaptiveAvgPool2d(1),
    new nn.Conv2d(12, 4, 1),
    new nn.ReLU(),
    new nn.Conv2d(4, 12, 1),
    new nn.Hardsigmoid(),
  );
  forward(x: Tensor): Tensor {
    const y = nn.functional.hardswish(this.norm.forward(this.depthwise.forward(this.expand.forward(x))));
    return y.mul(this.squeeze.forward(y) as Tensor);
  }
}

class Lstm extends nn.Module {
  readonly lstm: nn.LSTM = new nn.LSTM(6, 10, { numLayers: 2, bidirectional: true, dropout: 0.2 });
  forward(x: Tensor): Tensor {
    const [output] = this.lstm.forward(x);
    return output;
  }
}

describe('models', () => {
  const image = (device: Place): Tensor => randn([2, 3, 33, 31], { device });
  const channelsLast = (device: Place): Tensor => image(device).contiguous({ memoryFormat: 'channels_last' });
  const cases: [string, () => nn.Module, (device: Place) => Tensor][] = [
    ['GPT', () => new Gpt(), (device) => randint(0, 50, [3, 7], { device, dtype: int64 })],
    ['ResNet', () => new ResNet(), image],
    ['ResNet, channels last', () => new ResNet(), channelsLast],
    ['MobileNet', () => new MobileNet(), image],
    ['MobileNet, channels last', () => new MobileNet(), channelsLast],
    ['LSTM', () => new Lstm(), (device) => randn([5, 3, 6], { device })],
  ];
  const modes = cases.flatMap(([name, make, input]) => [
    { name: `${name} in training`, make, input, training: true },
    { name, make, input, training: false },
  ]);

  test.each(modes)('$name', ({ make, input, training }) => {
    const run = (device: Place): string[] =>
      scope(() => {
        const model = make().train(training).to({ device });
        const x = input(device);
        if (x.isFloatingPoint()) x.requiresGrad_();
        const y = (model as nn.Module & { forward(x: Tensor): Tensor }).forward(x);
        const loss =
          y.dim() === 3
            ? nn.functional.crossEntropy(y.flatten(0, 1), randint(0, y.size(2), [y.size(0) * y.size(1)], { device }))
            : y.pow(2).mean();
        loss.backward();
        const result = [y, loss, x.grad, ...[...model.parameters()].map((each) => each.grad)].map(describeTensor);
        model.dispose();
        return result;
      });
    expect(run('meta')).toEqual(run('cpu'));
  });

  test('a layer of four terabytes takes no memory', () =>
    scope(() => {
      const layer = new nn.Linear(1_000_000, 1_000_000, { device: 'meta' });
      const before = process.memoryUsage().rss;
      const y = layer.forward(randn([8, 1_000_000], { device: 'meta' }));
      nn.functional.gelu(y).sum().backward();
      expect(describeTensor(layer.weight.grad)).toBe('float32 [1000000,1000000] strides [1000000,1]');
      expect(process.memoryUsage().rss - before).toBeLessThan(512e6);
      layer.dispose();
    }));
});

test('inputs with too few dimensions are refused by the shapes of meta tensors, not read beyond their end', () => {
  const meta = (...shape: number[]): Tensor => ones(shape, { device: 'meta' });
  for (let i = 0; i < 50; i++) {
    expect(() => nn.functional.gridSample(meta(2, 3), zeros([0]))).toThrow(TorchError);
    expect(() => orgqr(tensor(1.5), meta(2, 3))).toThrow(TorchError);
    expect(() => callOp('aten::narrow_copy', [meta(), 0, 0, 1])).toThrow(TorchError);
  }
});
