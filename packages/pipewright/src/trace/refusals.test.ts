/** @file What tracing refuses, and sizes that it fixes: the reason, the line and the way out. */
import { nn, ones, type Tensor, tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { GraphModule, pipeline, SplitPoint, traceModule } from '../index.ts';

class Small extends nn.Module {
  fc = new nn.Linear(4, 4);

  forward(x: Tensor): Tensor {
    return this.fc.forward(x).relu();
  }
}

test('sizes that cannot be free: fixed where nobody asked, an error where somebody did', () => {
  class Odd extends nn.Module {
    forward(x: Tensor): Tensor {
      return x.size(0) > 3 ? x.mul(2) : x.add(2);
    }
  }
  const { fixedBecause } = traceModule(new Odd(), [ones([3, 2])]);
  expect(fixedBecause).toMatch(/does aten::add.Scalar \(%add\) at batch 3, but aten::mul.Scalar \(%mul\) at batch 6/);
  expect(() => traceModule(new Odd(), [ones([3, 2])], { dynamicShapes: [{ 0: 'rows' }] })).toThrow(
    /dynamicShapes: false/,
  );
  expect(traceModule(new Odd(), [ones([3, 2])], { dynamicShapes: false }).fixedBecause).toBeNull();
  class Fixed extends nn.Module {
    forward(x: Tensor): Tensor {
      return x.view(6);
    }
  }
  expect(() => traceModule(new Fixed(), [ones([3, 2])], { dynamicShapes: [{ 0: 'rows' }] })).toThrow(
    /works with the example, but not at rows 6/,
  );
  class Made extends nn.Module {
    forward(x: Tensor): Tensor {
      return x.add(tensor(Array.from({ length: x.size(0) }, (_, i) => i)).unsqueeze(1));
    }
  }
  expect(traceModule(new Made(), [ones([3, 2])]).fixedBecause).toMatch(
    /the constant lifted_tensor_0 made in forward differs/,
  );
  class Strange extends nn.Module {
    forward(x: Tensor): Tensor {
      return x.mul(Math.sin(x.size(0)));
    }
  }
  expect(traceModule(new Strange(), [ones([3, 2])]).fixedBecause).toMatch(/no simple expression of the sizes/);
});

test('why sizes are fixed is said by the pipe, and where another size comes', () => {
  class Strange extends nn.Module {
    a = new Small();
    b = new Small();
    forward(x: Tensor): Tensor {
      return this.b.forward(this.a.forward(x).mul(Math.sin(x.size(0))));
    }
  }
  const strange = new Strange();
  const reason = /a number given to aten::mul.Scalar in the model is .*: no simple expression of the sizes/;
  const pipe = pipeline(strange, { mbArgs: [ones([3, 4])], splitSpec: { b: SplitPoint.BEGINNING } });
  expect(pipe.notes).toEqual([
    expect.stringMatching(/^all sizes are those of the example, because other sizes did not/),
  ]);
  expect(pipe.notes[0]).toMatch(reason);
  const fixed =
    /dimension 0 is 5, but the graph was made for 3 \(float32\[3, 4\]\); it could not be left free: trace: /;
  const wrong = ones([5, 4]);
  for (const stage of [0, 1]) {
    expect(() => pipe.getStageModule(stage).forward(wrong)).toThrow(fixed);
    expect(() => pipe.getStageModule(stage).forward(wrong)).toThrow(reason);
  }
  const asked = pipeline(strange, { mbArgs: [ones([3, 4])], stages: 2, dynamicShapes: false });
  expect(asked.notes).toEqual([]);
  expect(() => asked.forward(wrong)).toThrow(
    /made for 3 .*; trace it with a name for that dimension: dynamicShapes: \[\{ 0: 'batch' \}\]$/,
  );
  const free = pipeline(new Small(), [ones([2, 3, 4])]);
  expect(free.notes).toEqual([]);
  expect(() => free.forward(ones([2, 5, 4]))).toThrow(/dynamicShapes: \[\{ 1: 'size' \}\]$/);
});

test('reading a value is an error with the line and the way out', () => {
  class Reads extends nn.Module {
    fc = new nn.Linear(4, 1);
    how: (x: Tensor) => unknown = (x) => x.sum().item();
    forward(x: Tensor): Tensor {
      const y = this.fc.forward(x);
      this.how(y);
      return y;
    }
  }
  const model = new Reads();
  expect(() => traceModule(model, [ones([2, 4])])).toThrow(
    /^trace: item\(\) \(at .*refusals\.test\.ts:\d+:\d+\) reads values while the model is traced.*where, maskedFill/s,
  );
  for (const [how, message] of [
    [(x: Tensor) => x.toArray(), /toArray\(\)/],
    [(x: Tensor) => x.tolist(), /toArray\(\)/],
    [(x: Tensor) => x.toTypedArray(), /toTypedArray\(\)/],
    [(x: Tensor) => x.equal(x), /aten::equal/],
    [(x: Tensor) => x.allclose(x), /aten::allclose/],
    [(x: Tensor) => x.nonzero(), /size depends on values/],
    [(x: Tensor) => x.at(x.gt(0)), /size depends on values/],
    [(x: Tensor) => x.sum().backward(), /backward\(\).*is not an operator/],
    [(x: Tensor) => x.setData(x), /setData\(\).*is not an operator/],
    [(x: Tensor) => (x.sum() as unknown as number) > 0, /operators .* do not work on tensors, got one of shape \[\]/],
    [() => model.fc.weight.sum().item(), /item\(\)/],
    [() => model.fc.weight.toArray(), /toArray\(\)/],
  ] as const) {
    model.how = how as (x: Tensor) => unknown;
    expect(() => traceModule(model, [ones([2, 4])])).toThrow(message);
    expect(() => traceModule(model, [ones([2, 4])], { mode: 'real' })).toThrow(message);
  }
  model.how = () => tensor([1, 2]).sum; // a constant made here may be read
  expect(() => traceModule(model, [ones([2, 4])])).not.toThrow();
  model.how = (x) => String(x); // and everything may be printed
  expect(() => traceModule(model, [ones([2, 4])])).not.toThrow();
});

test('a detached view that was changed with gradients is not made again', () => {
  class Detached extends nn.Module {
    fc = new nn.Linear(4, 4);
    step: (d: Tensor, y: Tensor) => unknown = (d, y) => d.copy_(y.clone());
    late: (y: Tensor) => unknown = (y) => y.mul_(1.5);
    forward(x: Tensor): Tensor {
      const y = this.fc.forward(x);
      const d = y.detach();
      this.step(d, y);
      this.late(y);
      return d.exp();
    }
  }
  const model = new Detached();
  const x = ones([2, 4]);
  for (const mode of ['meta', 'real'] as const)
    expect(() => traceModule(model, [x], { mode })).toThrow(
      /^trace: a detached view that was changed in place with gradients.*refusals\.test\.ts.*y\.detach\(\)\.clone\(\)/,
    );
  model.late = () => undefined; // where nothing is made again, its gradients are there
  expect(new GraphModule(...graphOf(model, x)).forward(x)).toMatchObject({ requiresGrad: true });
  model.late = (y) => y.mul_(1.5);
  model.step = (d) => d.mul_(2); // changed, but without gradients
  expect(new GraphModule(...graphOf(model, x)).forward(x)).toMatchObject({ requiresGrad: false });
});

function graphOf(model: nn.Module, x: Tensor): ConstructorParameters<typeof GraphModule> {
  const { graph, state } = traceModule(model, [x]);
  return [graph, state];
}

test('bad arguments are refused by name', () => {
  const model = new Small();
  const x = ones([2, 4]);
  expect(() => traceModule({} as never, [x])).toThrow(/first argument is a module/);
  expect(() => traceModule(model, x as never)).toThrow(/array of example arguments/);
  expect(() => traceModule(model, [x], { dynamicShape: false } as never)).toThrow(
    /unknown option 'dynamicShape' \(did you mean 'dynamicShapes'/,
  );
  expect(() => traceModule(model, [x], { mode: 'fake' } as never)).toThrow(/mode is 'fake'/);
  expect(() => traceModule(model, [x], { dynamicShapes: [] })).toThrow(/0 entries for 1 tensors/);
  expect(() => traceModule(model, [x], { dynamicShapes: [{ 2: 'a' }] })).toThrow(/dimension 2 of a tensor of 2/);
  expect(() => traceModule(model, [x], { dynamicShapes: [{ 0: 'a b' }] })).toThrow(/not a name/);
  expect(() => traceModule(model, [new Map([['x', x]])])).toThrow(/is a Map/);
  expect(() => traceModule(model, [new Date()])).toThrow(/argument x is a Date/);
  expect(() => traceModule(model, [ones([2, 5])])).toThrow(/shapes cannot be multiplied|size mismatch/i);
  class Nested extends nn.Module {
    inner = new Small();
    forward(y: Tensor): Tensor {
      traceModule(this.inner, [y]);
      return y;
    }
  }
  expect(() => traceModule(new Nested(), [x])).toThrow(/being traced already/);
});
