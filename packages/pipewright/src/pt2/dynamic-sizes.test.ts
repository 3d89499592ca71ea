/** @file Sizes that may change: what fits is taken, what does not is refused by name and range. */
import { fileURLToPath } from 'node:url';
import { randn, scope, type Tensor, tensor, zeros } from '@pipewright/torch';
import { describe, expect, it } from 'vitest';
import { loadPt2 } from '../index.ts';

const load = (name: string): ReturnType<typeof loadPt2> =>
  loadPt2(fileURLToPath(new URL(`../../../../testdata/exports/${name}.pt2`, import.meta.url)));

describe('dynamic sizes', () => {
  it('agree with each other', () => {
    const model = load('derived_sizes');
    const call = (x: number, y: number, z: number) => () =>
      scope(() => void model.forward(randn([x, 3]), randn([y, 3]), randn([z, 3])));
    expect(call(5, 10, 6)).not.toThrow();
    expect(call(5, 11, 6)).toThrow(/dimension 0 of input 'y' is 11, but must be 2\*s\d+, which is 10 \(s\d+ = 5\)/);
    expect(call(5, 10, 7)).toThrow(/dimension 0 of input 'z' is 7, but must be s\d+ \+ 1, which is 6/);
    expect(call(65, 130, 66)).toThrow(/s\d+ \(dimension 0 of input 'x'\) is 65, but must be at least 2 and at most 64/);
    expect(call(5, 10, 6)).not.toThrow(); // also after an error
  });

  it('are numbers of dimensions and element types, too', () => {
    const model = load('gemma');
    const ids = (...shape: number[]) => zeros(shape, { dtype: 'int64' });
    scope(() => {
      expect(() => model.forward(ids(2, 5), { mask: ids(2, 6) })).toThrow(
        /s\d+ is 5 in dimension 1 of input 'ids' but 6 in dimension 1 of input 'mask'; they must be equal/,
      );
      expect(() => model.forward(ids(2), { mask: ids(2, 6) })).toThrow(
        /input 'ids' is int64\[s\d+, s\d+\] with 2 dimensions, got shape \[2\]/,
      );
      expect(() => model.forward(zeros([2, 5]), { mask: ids(2, 5) })).toThrow(
        /input 'ids' is int64, got float32; convert it: x.to\('int64'\)/,
      );
      expect(() => model.forward(ids(2, 5), { mask: 3 })).toThrow(/input 'mask' is int64\[s\d+, s\d+\], got number 3/);
      expect(() => model.forward(ids(2, 5), { msk: ids(2, 5) })).toThrow(
        "keyword arguments: unknown name 'msk'; there are mask",
      );
      expect(() => model.forward(ids(2, 5), {})).toThrow("keyword arguments: 'mask' is missing");
      expect((model.forward(ids(2, 5), ids(2, 5)) as Tensor).shape).toEqual([2, 5, 40]); // written out in order
      expect(() => model.forward(ids(2, 5))).toThrow('takes 2 arguments (ids, { mask }), got 1');
    });
  });

  it('may be numbers themselves', () => {
    const model = load('number_input');
    scope(() => {
      expect(() => model.forward(randn([2, 3]), 2.5)).toThrow("input 'n' is a number of kind int, got number 2.5");
      expect(() => model.forward(randn([2, 3]), tensor(2))).toThrow("input 'n' is a number of kind int, got a tensor");
    });
  });

  it('what was fixed at export stays so', () => {
    const model = load('inputs');
    scope(() => {
      const [x, w, one] = [randn([2, 3]), randn([3]), randn([1])];
      const args = [x, { w, unused: one }, [w, [one]]];
      const named = { scale: tensor(2).to('float32'), bias: null, n: 3, f: 0.25, flag: true, name: 'a' };
      expect(() => model.forward(...args, named)).not.toThrow();
      expect(() => model.forward(...args, { scale: named.scale })).not.toThrow(); // constants need not be given
      expect(() => model.forward(...args, { ...named, n: 4 })).toThrow(
        "'n' was 3 when the graph was made and cannot change, got 4",
      );
      expect(() => model.forward(...args, { ...named, name: 'b' })).toThrow('\'name\' was "a" when the graph was made');
      expect(() => model.forward(x, { w, unused: one }, [w], named)).toThrow('pair is a list of 2, got a list of 1');
      expect(() => model.forward(x, [w], [w, [one]], named)).toThrow('options: an object with w, unused is expected');
    });
  });
});

it('a model in another type takes inputs of that type', () => {
  const model = load('vit').double();
  scope(() => {
    expect((model.forward(randn([2, 3, 16, 16], { dtype: 'float64' })) as { dtype: { name: string } }).dtype.name).toBe(
      'float64',
    );
    expect(() => model.forward(randn([2, 3, 16, 16], { dtype: 'float16' }))).toThrow(
      /input 'x' is float32, got float16/,
    );
  });
});
