/** @file Models with their loss inside: where it is, and the backward of every stage in the root graph. */
import { float64, mseLoss, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, Chain, gradientsOf, pipeGradients } from '../../testing/pipes.ts';
import {
  DetachExecutor,
  findLossOutput,
  formatGraph,
  type Graph,
  GraphBuilder,
  LossWrapper,
  pipeline,
  pipeSplit,
  SplitPoint,
  TrivialLossWrapper,
} from '../index.ts';

const x = randn(2, 4, { dtype: float64 });

describe('losses', () => {
  const target = randn(2, 4, { dtype: float64 });

  test('a model with its loss runs its own backward, stage by stage', () => {
    const model = new Chain().double();
    const lossFn = (y: Tensor, t: Tensor): Tensor => mseLoss(y, t);
    const wrapped = new TrivialLossWrapper(model, lossFn as never);
    const pipe = pipeline(wrapped, { mbArgs: [x, target], splitSpec: { 'module.layers.2': SplitPoint.BEGINNING } });
    expect(pipe.hasLossAndBackward).toBe(true);
    expect(pipe.info().hasLossAndBackward).toBe(true);
    const want = scope(() => {
      const loss = wrapped.forward(x, target);
      loss.backward();
      return [loss.item(), gradientsOf(wrapped)];
    });
    const got = scope(() => [(pipe.forward(x, target) as Tensor).item(), pipeGradients(pipe)]);
    expect(got).toEqual(want);
    expect(formatGraph(pipe.info().graph)).toMatchInlineSnapshot(`
      "graph(%x: float64[batch, 4], %targets: float64[batch, 4]) where 1 <= batch <= inf
        %submod_pp_0: float64[batch, 4] = module submod_pp_0(%x)
        %submod_pp_1: float64[] = module submod_pp_1(%submod_pp_0, %targets)
        %stage_backward = pipewright::stage_backward([%submod_pp_1], [null], [%submod_pp_0, %targets])
        %getitem = %stage_backward[0]
        %getitem_1 = %stage_backward[1]
        %stage_backward_1 = pipewright::stage_backward([%submod_pp_0], [%getitem], [%x])
        %getitem_2 = %stage_backward_1[0]
        return %submod_pp_1"
    `);
  });

  test('gradients of values with several users are added, inputs included', () => {
    class Both extends LossWrapper {
      other = new Block();
      forward(y: Tensor): unknown {
        const scaled = y.mul(1);
        pipeSplit();
        const one = (this.module as Block).forward(scaled);
        pipeSplit();
        const two = this.other.forward(one.add(scaled));
        return { stats: [two.detach()], loss: (this.lossFn as (a: Tensor) => Tensor)(two.mul(one)) };
      }
    }
    const model = new Both(new Block(), ((y: Tensor) => y.sum()) as never).double();
    const spec = { stats: [false], loss: true };
    const pipe = pipeline(model, { mbArgs: [x], lossSpec: spec });
    const want = scope(() => {
      (model.forward(x) as { loss: Tensor }).loss.backward();
      return gradientsOf(model);
    });
    scope(() => pipe.forward(x));
    expect(pipeGradients(pipe)).toEqual(want);
  });

  test('the loss is found by specification or by the key loss', () => {
    const graph = (value: (y: { ref: string }) => never): Graph => {
      const g = new GraphBuilder();
      const y = g.callModule('submod_pp_0', [g.placeholder('x')]);
      g.output(value(y));
      return g.build();
    };
    const nested = graph((y) => [[1, 2], { dict: { a: 3, b: y } }] as never);
    expect(findLossOutput(nested)).toBeNull();
    expect(findLossOutput(nested, [[false, false], { a: false, b: true }])).toBe('submod_pp_0');
    expect(findLossOutput(graph((y) => ({ dict: { loss: y } }) as never))).toBe('submod_pp_0');
    expect(() => findLossOutput(nested, [[false, false], { a: false, b: false }])).toThrow(/nothing in it is true/);
    expect(() => findLossOutput(nested, [[true, false], false])).toThrow(/holds no tensor/);
    expect(() => findLossOutput(nested, [[false], false])).toThrow(
      /the output\[0\] is a list of 1 there, but the model returns a list of 2/,
    );
    expect(() => findLossOutput(nested, [false, { a: true }])).toThrow(
      /an object with a there, but the model returns an object with a, b/,
    );
    expect(() => findLossOutput(nested, 'loss' as never)).toThrow(/write true, false/);
  });

  test('the executor detaches at borders', () => {
    const pipe = pipeline(new Chain().double(), { mbArgs: [x], splitSpec: { 'layers.2': SplitPoint.BEGINNING } });
    scope(() => {
      const executor = new DetachExecutor(pipe.info().graph, (name) => pipe.getSubmodule(name));
      const y = executor.run(x) as Tensor;
      y.sum().backward();
      expect(
        pipe
          .getStageModule(1)
          .parameters()
          .every((each) => each.grad !== null),
      ).toBe(true);
      expect(
        pipe
          .getStageModule(0)
          .parameters()
          .every((each) => each.grad === null),
      ).toBe(true);
    });
  });
});
