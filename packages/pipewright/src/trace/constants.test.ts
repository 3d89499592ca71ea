/** @file Constants made in forward and changed in place: every call begins with what they were made of. */
import { checkpoint, float64, nn, noGrad, randn, scope, type Tensor, tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, expectClose, expectEqual } from '../../testing/pipes.ts';
import { GraphModule, pipeSplit, traceModule } from '../index.ts';

const x = randn(3, 4, { dtype: float64 });
const zero = (): Tensor => tensor(0, { dtype: float64 });

/** Blocks with something beside them. */
class Beside extends nn.Module {
  a = new Block();
  b = new Block();
  private readonly make: () => Tensor;
  private readonly change: (made: Tensor, y: Tensor) => unknown;

  constructor(make: () => Tensor, change: (made: Tensor, y: Tensor) => unknown) {
    super();
    this.make = make;
    this.change = change;
    this.double();
  }

  forward(given: Tensor): unknown {
    const made = this.make();
    const one = this.a.forward(given);
    this.change(made, one);
    pipeSplit();
    const two = this.b.forward(one);
    this.change(made, two);
    return [two, made];
  }
}

const cases: [() => Tensor, (made: Tensor, y: Tensor) => unknown][] = [
  [zero, (made, y) => made.add_(y.pow(2).mean())],
  [zero, (made, y) => noGrad(() => made.add_(y.pow(2).mean()))],
  [() => tensor([0, 1], { dtype: float64 }), (made, y) => made.set_([0], y.mean())],
  [() => tensor([0, 1], { dtype: float64 }), (made, y) => made.view(2, 1).narrow(0, 1, 1).mul_(y.sum())],
  [zero, (made, y) => made.add_(checkpoint(() => y.tanh().mean(), []))],
];

describe('constants made in forward', () => {
  test('do not remember calls', () => {
    for (const [make, change] of cases)
      for (const mode of ['meta', 'real'] as const) {
        const model = new Beside(make, change);
        const { graph, state } = traceModule(model, [x], { mode });
        expect(state.get('lifted_tensor_0')?.toArray()).toEqual(make().toArray());
        const traced = new GraphModule(graph, state);
        const run = (of: { forward(given: Tensor): unknown }): unknown =>
          scope(() => {
            const outputs = of.forward(x) as Tensor[];
            for (const parameter of model.parameters()) parameter.grad = null;
            (outputs[0]!.sum().add(outputs[1]!.sum()) as Tensor).backward();
            return [
              outputs.map((each) => each.detach().toArray()),
              model.parameters().map((each) => each.grad?.toArray()),
            ];
          });
        const want = run(model);
        for (let call = 0; call < 3; call++) expectClose(run(traced), want);
        for (const parameter of model.parameters()) parameter.grad = null;
        const pipe = expectEqual(model, [x], { mode });
        expect(pipe.numStages).toBe(2);
        expectClose(
          scope(() => (pipe.forward(x) as Tensor[]).map((each) => each.detach().toArray())),
          (want as unknown[])[0],
        );
      }
  });

  test('those that nothing changes are not copied, and those from outside keep what they were changed to', () => {
    const fixed = new Beside(
      () => tensor([1, 2, 3, 4], { dtype: float64 }),
      (made, y) => y.mul(made),
    );
    const { graph } = traceModule(fixed, [x]);
    expect(graph.nodes.filter((node) => node.kind === 'call' && node.op === 'aten::clone')).toEqual([]);
    const outside = zero();
    const counts = new Beside(
      () => outside,
      (made) => noGrad(() => made.add_(1)),
    );
    const traced = traceModule(counts, [x], { mode: 'meta' });
    const module = new GraphModule(traced.graph, traced.state);
    scope(() => module.forward(x));
    scope(() => module.forward(x));
    expect(outside.item()).toBe(4);
  });
});
