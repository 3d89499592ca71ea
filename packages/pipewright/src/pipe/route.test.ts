/** @file What travels between stages: values that the model returns and the last stage has itself stay there. */
import { float64, full, nn, ones, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, expectClose } from '../../testing/pipes.ts';
import { type Graph, GraphBuilder, pipeline, pipeSplitOp } from '../index.ts';

/** As `torch.export` writes a model that returns sizes: read once from the input, used and returned at the end. */
function withSizes(marks: number): Graph {
  const g = new GraphBuilder();
  const meta = { dtype: 'float64', shape: ['s0', 4] };
  const x = g.placeholder('x', { meta });
  const weight = g.attribute('w', { meta: { dtype: 'float64', shape: [4, 4] } });
  const rows = g.call('aten::sym_size.int', [x, 0], { meta: { scalar: 'int', value: 's0' } });
  const twice = g.call('scalar::mul', [rows, 2], { meta: { scalar: 'int', value: '2*s0' } });
  let y = x;
  for (let i = 0; i < marks; i++) {
    y = g.call('aten::tanh', [g.call('aten::mm', [y, weight], { meta })], { meta });
    g.call(pipeSplitOp, []);
  }
  const scaled = g.call('aten::mul.Scalar', [y, twice], { meta });
  g.output([g.call('aten::view', [scaled, [rows, 4]], { meta }), rows, twice]);
  return { ...g.build(), ranges: { s0: { min: 1, max: null } } };
}

describe('what the model returns', () => {
  test('sizes that the last stage reads again', () => {
    const weight = new nn.Parameter(randn(4, 4, { dtype: float64 }));
    const run = (stages: number, given: Tensor): unknown =>
      scope(() => {
        const pipe = pipeline({ graph: withSizes(stages - 1), state: new Map([['w', weight]]) }, {});
        expect(pipe.numStages).toBe(stages);
        const [y, ...sizes] = pipe.forward(given) as [Tensor, number, number];
        let want = given;
        for (let i = 1; i < stages; i++) want = want.mm(weight).tanh();
        expectClose(
          y.detach().toArray(),
          want
            .mul(2 * given.size(0))
            .detach()
            .toArray(),
        );
        return sizes;
      });
    for (const stages of [1, 2, 3, 4]) {
      expect(run(stages, ones([3, 4], { dtype: float64 }))).toEqual([3, 6]);
      expect(run(stages, ones([5, 4], { dtype: float64 }))).toEqual([5, 10]);
    }
  });

  test('values that the last stage computes again', () => {
    class Scaled extends nn.Module {
      a = new Block();
      b = new Block();
      forward(x: Tensor): unknown {
        const scale = full([4], 0.5, { dtype: float64 }).add(1);
        const rows = x.size(0);
        return [this.b.forward(this.a.forward(x).mul(scale)).mul(scale).mul(rows), scale, rows];
      }
    }
    const model = new Scaled().double();
    const plain = (of: { forward(x: Tensor): unknown }, x: Tensor): unknown =>
      scope(() =>
        (of.forward(x) as (Tensor | number)[]).map((each) => (typeof each === 'number' ? each : each.toArray())),
      );
    for (const shared of ['send', 'recompute', 'auto'] as const) {
      const pipe = pipeline(model, [ones([2, 4], { dtype: float64 })], { stages: 2, shared });
      for (const rows of [2, 5]) {
        const x = randn(rows, 4, { dtype: float64 });
        expectClose(plain(pipe, x), plain(model, x));
      }
    }
  });
});
