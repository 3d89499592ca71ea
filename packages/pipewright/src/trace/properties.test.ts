/** @file Random models, traced and split at random places, do what they did: outputs, gradients, at other sizes, in place. */
import { fc, test } from '@fast-check/vitest';
import {
  cat,
  checkpoint,
  float64,
  manualSeed,
  nn,
  noGrad,
  randn,
  scope,
  stack,
  type Tensor,
  TorchError,
} from '@pipewright/torch';
import { describe, expect } from 'vitest';
import { expectClose, pipeGradients } from '../../testing/pipes.ts';
import { flatten, tensorsIn } from '../base/tree.ts';
import { GraphModule, pipeline, pipeSplit, traceModule } from '../index.ts';

/** One step of a model: what is done, with which values and which module. */
interface Step {
  readonly kind: keyof typeof steps;
  readonly a: number;
  readonly b: number;
  readonly module: number;
  /** A stage ends after it. */
  readonly mark: boolean;
}

type Layer = nn.Module & { forward(x: Tensor): Tensor };

/** What steps do with values of shape [batch, 4]. */
const steps = {
  module: ({ a, layer }) => layer.forward(a),
  checkpointed: ({ a, layer }) => checkpoint((x: Tensor) => layer.forward(x), [a]),
  residual: ({ a, layer }) => a.add(layer.forward(a)),
  add: ({ a, b }) => a.add(b),
  mul: ({ a, b }) => a.mul(b),
  tanh: ({ a }) => a.tanh(),
  dropout: ({ a, drop }) => drop.forward(a),
  addInPlace: ({ a, b }) => a.clone().add_(b),
  changeInPlace: ({ a }) => a.mul_(0.5),
  changeRow: ({ a }) => {
    a.select(0, 0).add_(1);
    return a;
  },
  changeReshaped: ({ a }) => {
    a.reshape(-1, 2).mul_(0.5);
    return a;
  },
  changeQuiet: ({ a, b }) => {
    const made = noGrad(() => a.clone());
    made.select(1, 0).fill_(0.5);
    return made.add_(b);
  },
  views: ({ a }) => a.view(-1).view(a.size(0), 4),
  halves: ({ a, b }) => cat([a.chunk(2, 1)[1] as Tensor, b.split(2, 1)[0] as Tensor], 1),
  withoutGradient: ({ a, b }) => a.mul(noGrad(() => b.abs().mean())),
  bySize: ({ a }) => a.sum(0).div(a.size(0)).expand(a.size(0), 4),
  detached: ({ a }) => a.detach(),
} satisfies Record<string, (values: { a: Tensor; b: Tensor; layer: Layer; drop: nn.Dropout }) => Tensor>;

/** Takes an object and gives a pair, as models do inside. */
class Pair extends nn.Module {
  fc = new nn.Linear(4, 4);
  forward(x: Tensor): Tensor {
    const { sum, parts } = this.inner({ x });
    return sum.add(parts[0] as Tensor);
  }
  private inner({ x }: { x: Tensor }): { sum: Tensor; parts: Tensor[] } {
    const y = this.fc.forward(x);
    return { sum: y.add(x), parts: [y.tanh(), x] };
  }
}

class Random extends nn.Module {
  layers: nn.ModuleList<Layer>;
  drop = new nn.Dropout(0.3);
  private readonly program: readonly Step[];
  private readonly shape: 'last' | 'list' | 'tree';

  constructor(program: readonly Step[], shape: 'last' | 'list' | 'tree') {
    super();
    this.program = program;
    this.shape = shape;
    const shared = new nn.Linear(4, 4) as unknown as Layer;
    const nested = new nn.Sequential(new nn.LayerNorm(4), shared, new nn.ReLU({ inplace: true })) as unknown as Layer;
    this.layers = new nn.ModuleList<Layer>([
      shared,
      nested,
      new Pair(),
      new nn.Linear(4, 4, { bias: false }) as unknown as Layer,
    ]);
    this.double();
  }

  forward(x: Tensor, other: Tensor): unknown {
    const values = [x.mul(1), other.mul(1)];
    for (const { kind, a, b, module, mark } of this.program) {
      const pick = (at: number): Tensor => values[at % values.length] as Tensor;
      values.push(
        steps[kind]({ a: pick(a), b: pick(b), layer: this.layers.at(module % this.layers.length), drop: this.drop }),
      );
      if (mark) pipeSplit();
    }
    const [last, before] = [values.at(-1)!, values.at(-2)!];
    if (this.shape === 'last') return last;
    return this.shape === 'list' ? [last, before, other] : { last, more: { before, list: [last.sum()] }, none: null };
  }
}

const kinds = Object.keys(steps) as (keyof typeof steps)[];
const step = fc.record<Step>({
  kind: fc.constantFrom(...kinds),
  a: fc.nat(20),
  b: fc.nat(20),
  module: fc.nat(3),
  mark: fc.boolean(),
});
const model = fc.tuple(fc.array(step, { minLength: 1, maxLength: 10 }), fc.constantFrom('last', 'list', 'tree'));

type Forward = { forward(...args: unknown[]): unknown };

/** Outputs and gradients; null where the model itself cannot be differentiated (it changed what backward needs). */
function behaviour(of: Forward, inputs: readonly Tensor[], gradients: () => unknown): unknown {
  return scope(() => {
    manualSeed(5);
    const given = inputs.map((each) => each.clone().requiresGrad_());
    const result = of.forward(...given);
    const { leaves, spec } = flatten(result);
    const outputs = tensorsIn(leaves);
    const values = outputs.map((each) => each.detach().toArray());
    const roots = outputs.filter((each) => each.requiresGrad).map((each) => each.mul(each.detach().add(1)).sum());
    try {
      if (roots.length > 0) stack(roots).sum().backward();
    } catch {
      return null;
    }
    return { spec, values, inputs: given.map((each) => each.grad?.toArray() ?? null), parameters: gradients() };
  });
}

function ownGradients(module: nn.Module): Record<string, unknown> {
  const found = Object.fromEntries(
    module.namedParameters().map(([name, each]) => [name, each.grad?.toArray() ?? null]),
  );
  for (const parameter of module.parameters()) parameter.grad = null;
  return found;
}

const inputs = [2, 5].map((batch) =>
  [0, 1].map((seed) => {
    manualSeed(seed);
    return randn(batch, 4, { dtype: float64 });
  }),
);

describe('a random model', () => {
  test.prop([model], { numRuns: 100 })('traced, and split at its marks, equals itself', ([program, shape]) => {
    const random = new Random(program, shape as 'last');
    let want: unknown[] = [null];
    try {
      want = inputs.map((given) => behaviour(random as Forward, given, () => ownGradients(random)));
    } catch (error) {
      expect(error).toBeInstanceOf(TorchError); // a view of what cannot be viewed, a change of what cannot be changed
    }
    fc.pre(!want.includes(null));
    const traced = traceModule(random, inputs[0] as Tensor[]);
    expect(traced.fixedBecause).toBeNull();
    const whole = new GraphModule(traced.graph, traced.state);
    const all = random.namedParameters({ removeDuplicate: false });
    const names = random.namedParameters().map(([name]) => name);
    /** A shared module goes by the name that it is called under. */
    const aliases = new Map(
      random
        .namedParameters()
        .map(([name, each]) => [name, all.flatMap(([other, one]) => (one === each ? other : []))]),
    );
    for (const multiUse of ['replicate', 'transmit'] as const) {
      const pipe = pipeline(traced, { multiUse, shared: multiUse === 'replicate' ? 'recompute' : 'send' });
      const split = (): unknown => {
        const found = pipeGradients(pipe);
        const gradientOf = (name: string): unknown =>
          (aliases.get(name) ?? []).map((alias) => found[alias] ?? null).find((grad) => grad !== null) ?? null;
        return Object.fromEntries(names.map((name) => [name, gradientOf(name)]));
      };
      inputs.forEach((given, i) => expectClose(behaviour(pipe as Forward, given, split), want[i]));
    }
    const own = (): unknown => {
      const found = ownGradients(random);
      return Object.fromEntries(names.map((name) => [name, found[name]]));
    };
    inputs.forEach((given, i) => expectClose(behaviour(whole as Forward, given, own), want[i]));
  });
});
