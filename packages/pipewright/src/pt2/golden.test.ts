/** @file The exported models of PyTorch 2.11: outputs, losses and gradients as it computed them. */
import { fileURLToPath } from 'node:url';
import { cat, float64, liveTensors, loadSafetensors, noGrad, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, it } from 'vitest';
import { type GraphModule, loadPt2 } from '../index.ts';

const models = ['mlp', 'mlp_dyn', 'split_mlp', 'gpt2', 'gpt2_dyn', 'llama', 'llama_dyn', 'bert'];
const file = (name: string): string => fileURLToPath(new URL(`../../../../testdata/models/${name}`, import.meta.url));

/** The largest difference, relative to the largest value or to `scale`, if that is larger. */
function difference(got: Tensor, want: Tensor, scale = 1e-12): number {
  expect(got.shape).toEqual(want.shape);
  expect(got.dtype).toBe(want.dtype);
  return scope(() => {
    const [a, b] = [got.detach().to(float64), want.to(float64)];
    const size = b.abs().max().item() as number;
    return (a.sub(b).abs().max().item() as number) / Math.max(size, scale);
  });
}

function inputsOf(stored: ReadonlyMap<string, Tensor>): Tensor[] {
  const names = [...stored.keys()].filter((name) => name.startsWith('input.'));
  return names.sort().map((name) => stored.get(name)!);
}

describe.each(models)('%s', (name) => {
  it('computes what PyTorch computes, gradients too', () => {
    const stored = loadSafetensors(file(`${name}.safetensors`));
    const model = loadPt2(file(`${name}.pt2`), { verify: true });
    const before = liveTensors();
    scope(() => {
      const output = model.forward(...inputsOf(stored)) as Tensor;
      expect(difference(output, stored.get('output')!)).toBeLessThan(1e-5);
      const loss = output.square().mean();
      expect(difference(loss, stored.get('loss')!.reshape(loss.shape))).toBeLessThan(1e-5);
      loss.backward();
      const parameters = new Map(model.namedParameters({ removeDuplicate: false }));
      const wanted = [...stored.keys()].filter((key) => key.startsWith('grad.'));
      expect(wanted.length).toBeGreaterThan(0);
      // Some gradients are zero but for rounding: all of bert's before its last normalisation, which undoes any change.
      const largest = Math.max(...wanted.map((key) => stored.get(key)!.abs().max().item() as number));
      for (const key of wanted) {
        const { grad } = parameters.get(key.slice(5)) ?? { grad: null };
        expect(grad, key).not.toBeNull();
        expect(difference(grad!, stored.get(key)!, largest / 100), key).toBeLessThan(1e-4);
      }
      for (const parameter of model.parameters()) parameter.grad = null;
    });
    expect(liveTensors()).toBe(before);
    model.dispose();
  });
});

describe.each(models.filter((name) => name.endsWith('_dyn')))('%s with other batch sizes', (name) => {
  const stored = loadSafetensors(file(`${name}.safetensors`));
  const model: GraphModule = loadPt2(file(`${name}.pt2`));

  it.each([1, 3, 8, 17])('batch %i gives the rows of the recorded batch', (batch) => {
    scope(() =>
      noGrad(() => {
        const rows = (x: Tensor): Tensor => cat([x, x, x], 0).narrow(0, 0, batch);
        const output = model.forward(...inputsOf(stored).map(rows)) as Tensor;
        expect(difference(output, rows(stored.get('output')!))).toBeLessThan(1e-5);
      }),
    );
  });

  it('refuses what is out of range', () => {
    scope(() => {
      const [x] = inputsOf(stored) as [Tensor];
      const many = cat(Array.from({ length: 200 }, () => x)).narrow(0, 0, 1025);
      expect(() => model.forward(many)).toThrow(/is 1025, but must be at least 1 and at most 1024/);
      expect(() => model.forward(x.narrow(1, 0, 2))).toThrow(/dimension 1 is 2, but the graph was made for/);
    });
  });
});

it('loads the weights of the original model over those of the file', () => {
  scope(() => {
    const model = loadPt2(file('mlp.pt2'));
    const state = new Map([...model.stateDict()].map(([key, value]) => [key, value.mul(0.5)]));
    expect([...state.keys()].slice(0, 3)).toEqual(['layers.0.weight', 'layers.0.bias', 'layers.1.weight']);
    expect(model.loadStateDict(state)).toEqual({ missingKeys: [], unexpectedKeys: [] });
    expect(difference(model.getParameter('head.bias'), state.get('head.bias')!)).toBe(0);
    const again = loadPt2(file('mlp.pt2'));
    expect(difference(again.getParameter('head.bias').mul(0.5), state.get('head.bias')!)).toBe(0);
  });
});
