/** @file Numbers of a graph follow Python: facts from Python 3.11, written down. */
import { describe, expect, it } from 'vitest';
import { runScalarOp, scalarOp, scalarOpNames } from './scalar-ops.ts';

const run = (name: string, ...values: (number | boolean)[]): unknown => {
  const op = scalarOp(`scalar::${name}`);
  if (op === undefined) throw new Error(name);
  const kind = op.kind(values.map((v) => (typeof v === 'boolean' ? 'bool' : Number.isInteger(v) ? 'int' : 'float')));
  return runScalarOp(`scalar::${name}`, op, kind, values);
};

describe('scalar operators', () => {
  it.each([
    ['floordiv', [7, 2], 3],
    ['floordiv', [-7, 2], -4],
    ['floordiv', [7, -2], -4],
    ['mod', [7, 3], 1],
    ['mod', [-7, 3], 2],
    ['mod', [7, -3], -2],
    ['mod', [-6, 3], 0],
    ['truediv', [7, 2], 3.5],
    ['pow', [2, 10], 1024],
    ['neg', [0], 0],
    ['trunc', [-2.5], -2],
    ['int', [2.9], 2],
    ['float', [2], 2],
    ['ceil', [-0.5], 0],
    ['and', [6, 3], 2],
    ['and', [true, false], false],
    ['or', [6, 3], 7],
    ['xor', [true, true], false],
    ['lshift', [1, 40], 2 ** 40],
    ['rshift', [-5, 1], -3],
    ['not', [false], true],
    ['max', [2, 5], 5],
    ['ite', [true, 1, 2], 1],
    ['sqrt', [9], 3],
    ['eq', [2, 2], true],
    ['le', [2, 1], false],
  ] as [string, (number | boolean)[], unknown][])('%s(%j) is %j', (name, values, expected) => {
    expect(run(name, ...values)).toBe(expected);
  });

  it('what Python refuses is refused, and what a number cannot hold', () => {
    expect(() => run('floordiv', 1, 0)).toThrow('scalar::floordiv: 1 divided by zero');
    expect(() => run('mod', 1, 0)).toThrow('scalar::mod: 1 modulo zero');
    expect(() => run('mul', 2 ** 40, 2 ** 40)).toThrow('is not an exact integer');
    expect(scalarOp('scalar::nothing')).toBeUndefined();
    expect(scalarOp('aten::add')).toBeUndefined();
    expect(scalarOpNames).toContain('floordiv');
  });
});
