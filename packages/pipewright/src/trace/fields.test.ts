/** @file Fields that forward sets: the model is left as it was; caches of constants are computed, other tensors refused. */
import { arange, float64, keep, liveTensors, nn, randn, scope, Tensor, zeros } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, expectEqual } from '../../testing/pipes.ts';
import { pipeSplit, traceModule } from '../index.ts';

const x = randn(3, 4, { dtype: float64 });

/** A model that does something with itself on its way. */
class Sets extends nn.Module {
  a = new Block();
  b = new Block();
  inner = new nn.Sequential(new nn.Tanh());
  last: Tensor | null = null;
  kept = new nn.Buffer(zeros([4], { dtype: float64 }));
  mean = zeros([4], { dtype: float64 });
  list: Tensor[] = [];
  byName = new Map<string, Tensor>();
  calls = 0;
  extra: nn.Module | null = null;
  private readonly act: (model: Sets, y: Tensor) => unknown;

  constructor(act: (model: Sets, y: Tensor) => unknown) {
    super();
    this.act = act;
    this.double();
  }

  forward(given: Tensor): Tensor {
    const y = this.a.forward(given);
    const found = this.act(this, y);
    pipeSplit();
    const z = this.b.forward(y);
    return found instanceof Tensor ? z.mul(found) : z;
  }
}

describe('fields that forward sets', () => {
  test('are as before after tracing, and a tensor of a call is refused by name', () => {
    const cases: [string, (model: Sets, y: Tensor) => unknown, RegExp][] = [
      ['last', (model, y) => (model.last = keep(y.mean())), /sets the field last to a tensor that depends on inputs/],
      [
        'last',
        (model, y) => void (model.last = new nn.Buffer(y)),
        /the field last to a new buffer.*in the constructor/,
      ],
      ['last', (model) => (model.last = keep(model.a.fc.weight.sum())), /the field last .*parameters/],
      ['last', (model) => (model.last = keep(randn(4))), /the field last .*random numbers/],
      ['kept', (model) => (model.kept = new nn.Buffer(zeros([4]))), /the field kept to a new buffer/],
      ['mean', (model) => (model.mean = keep(model.mean.add(1))), /the field mean to another tensor.*mean\.copy_/],
      ['list', (model, y) => model.list.push(keep(y)), /the field list\.0 to a tensor that depends on inputs/],
      ['byName', (model, y) => model.byName.set('y', keep(y.detach())), /the field byName\.y to a tensor/],
      ['extra', (model) => (model.extra = new nn.Tanh()), /the field extra to a new module/],
      ['inner', (model, y) => Reflect.set(model.inner, 'seen', keep(y)), /the field inner\.seen to a tensor/],
    ];
    for (const [field, act, message] of cases)
      for (const mode of ['auto', 'real'] as const) {
        const model = new Sets((self, y) => void act(self, y));
        const before = [Reflect.get(model, field), [...model.stateDict().keys()], model.list.length, model.byName.size];
        expect(() => traceModule(model, [x], { mode }), String(message)).toThrow(
          expect.objectContaining({ code: 'TRACE_CHANGES_FIELD', message: expect.stringMatching(message) as string }),
        );
        const after = [Reflect.get(model, field), [...model.stateDict().keys()], model.list.length, model.byName.size];
        expect(after[0]).toBe(before[0]);
        expect(after).toEqual(before);
        expect(Object.hasOwn(model.inner, 'seen')).toBe(false);
        scope(() => model.forward(x)); // which still works
      }
  });

  test('a cache that follows from constants is computed by the graph', () => {
    const table = (): Tensor => arange(4, { dtype: float64 }).mul(0.5).cos();
    const caches: ((model: Sets, y: Tensor) => Tensor)[] = [
      (model) => (model.last ??= keep(table())),
      (model) => (model.last ??= keep(table().add(model.kept))),
      (model) => (model.list[0] ??= keep(table())),
      (model) => {
        if (!model.byName.has('table')) model.byName.set('table', keep(table()));
        return model.byName.get('table')!;
      },
    ];
    for (const cache of caches) {
      const model = new Sets(cache);
      const live = liveTensors();
      traceModule(model, [x]);
      expect(liveTensors()).toBe(live);
      expect(model.last).toBeNull();
      expectEqual(model, [x], {});
      expectEqual(model, [x], {}); // now with the cache filled
    }
  });

  test('what is neither tensor nor module is put back', () => {
    const model = new Sets((self) => (self.calls += 1));
    expectEqual(model, [x], {});
    expect(model.calls).toBe(1); // of the model itself
  });
});
