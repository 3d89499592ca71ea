/** @file Losses over very many classes: chunks and clusters give what the plain way gives. */
import { describe, expect, test } from 'vitest';
import { arange, nn, optim, rand, randint, randn, scope, type Tensor } from '../../index.ts';

const F = nn.functional;
type Settings = nn.functional.LinearCrossEntropySettings;

describe('linearCrossEntropy in chunks', () => {
  const weight = rand([9], { dtype: 'float64' });
  const cases: [string, Settings][] = [
    ['mean', {}],
    ['sum', { reduction: 'sum' }],
    ['none', { reduction: 'none' }],
    ['weights', { weight }],
    ['an ignored class', { ignoreIndex: 3, weight }],
    ['smoothing', { labelSmoothing: 0.2, weight, ignoreIndex: 1 }],
  ];
  const run = (settings: Settings, probabilities: boolean): unknown[] =>
    scope(() => {
      const wave = (shape: number[]): Tensor =>
        arange(shape.reduce((a, b) => a * b))
          .to('float64')
          .mul(0.7)
          .sin()
          .reshape(shape);
      const [x, w, b] = [wave([11, 5]), wave([9, 5]), wave([9])].map((each) => each.requiresGrad_());
      const target = probabilities ? wave([11, 9]).softmax(1) : arange(11).mul(7).remainder(9);
      const loss = F.linearCrossEntropy(x as Tensor, w as Tensor, target, { ...settings, linearBias: b });
      loss.sum().backward();
      return [loss, x?.grad, w?.grad, b?.grad].map((each) => each!.flatten().toArray());
    });
  const kinds = cases.flatMap(([name, settings]) => [
    { name, settings, probabilities: false },
    { name: `${name}, of probabilities`, settings: { ...settings, ignoreIndex: null }, probabilities: true },
  ]);

  test.each(kinds)('$name', ({ settings, probabilities }) => {
    const wanted = run(settings, probabilities).flat() as number[];
    for (const batchChunkSize of [1, 4, 11, 100]) {
      const found = run({ ...settings, options: { batchChunkSize } }, probabilities).flat() as number[];
      expect(found.length).toBe(wanted.length);
      found.forEach((value, i) => expect(Math.abs(value - (wanted[i] as number))).toBeLessThan(1e-12));
    }
  });

  test('what makes no sense is refused', () => {
    const [x, w, t] = [rand([4, 5]), rand([9, 5]), randint(0, 9, [3])];
    expect(() => F.linearCrossEntropy(x, w, t, { options: { batchChunkSize: 2 } })).toThrow(/4 rows, the target 3/);
    expect(() => F.linearCrossEntropy(x, w, t, { options: { batchChunkSize: 0 } })).toThrow(/at least 1/);
    expect(() => F.linearCrossEntropy(x, w, t, { reducton: 'sum' } as object)).toThrow(/did you mean 'reduction'/);
    expect(() => new nn.LinearCrossEntropyLoss(5, 9, { labelSmoothing: 2 })).toThrow(/between 0 and 1/);
  });
});

describe('AdaptiveLogSoftmaxWithLoss', () => {
  test('probabilities of all classes sum to one, and forward picks those of the targets', () =>
    scope(() => {
      const module = new nn.AdaptiveLogSoftmaxWithLoss(12, 20, [4, 9], { divValue: 2, dtype: 'float64' });
      const x = randn([30, 12], { dtype: 'float64' });
      const target = randint(0, 20, [30]);
      const all = module.logProb(x);
      expect(all.exp().sum(1).sub(1).abs().max().item()).toBeLessThan(1e-12);
      const [output, loss] = module.forward(x, target);
      const picked = all.gather(1, target.unsqueeze(1)).squeeze(1);
      expect(output.sub(picked).abs().max().item()).toBeLessThan(1e-12);
      expect(loss.item()).toBeCloseTo(-(picked.mean().item() as number), 12);
      expect(module.predict(x).toArray()).toEqual(all.argmax(1).toArray());
    }));

  test('what makes no sense is refused', () => {
    expect(() => new nn.AdaptiveLogSoftmaxWithLoss(8, 10, [5, 3])).toThrow(/rising whole numbers between 1 and 9/);
    const module = new nn.AdaptiveLogSoftmaxWithLoss(8, 10, [5]);
    expect(() => module.forward(rand([2, 8]), randint(0, 9, [3]))).toThrow(/got \[2, 8\] and \[3\]/);
    expect(() => module.forward(rand([1, 8]), randint(10, 11, [1]))).toThrow(/in the range \[0, 9\]/);
  });
});

test('an optimizer may be made before a lazy layer has seen its input', () =>
  scope(() => {
    const model = new nn.Sequential(new nn.LazyLinear(4), new nn.ReLU(), new nn.LazyLinear(1));
    const optimizer = new optim.SGD(model.parameters(), { lr: 0.1 });
    const loss = (): Tensor => (model.forward(randn([8, 3])) as Tensor).pow(2).mean();
    loss().backward();
    const before = (model.at(0) as nn.Linear).weight.toArray();
    optimizer.step();
    expect((model.at(0) as nn.Linear).weight.toArray()).not.toEqual(before);
    expect(model.toString()).toBe(
      'Sequential(\n  (0): Linear(in_features=3, out_features=4, bias=True)\n  (1): ReLU()\n  (2): Linear(in_features=4, out_features=1, bias=True)\n)',
    );
  }));
