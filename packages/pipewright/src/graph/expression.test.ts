import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { evaluate, isLinear, parseExpression, solve, symbolsOf } from './expression.ts';

const value = (text: string, symbols: Record<string, number> = {}): number | undefined => {
  const parsed = parseExpression(text);
  return parsed === undefined ? undefined : evaluate(parsed, new Map(Object.entries(symbols)));
};

describe('expressions', () => {
  it.each([
    ['s0', 5],
    ['2*s0 + 1', 11],
    ['s0 - 1 - 1', 3],
    ['-s0', -5],
    ['-2**2', -4],
    ['2**3**2', 512],
    ['2**-1', 0.5],
    ['s0//2*2', 4],
    ['-7//2', -4],
    ['-7 % 3', 2],
    ['(s0 + 1)*(s0 - 1)', 24],
    ['Max(s0, 2, 9)', 9],
    ['Min(s0, s1)', 3],
    ['FloorDiv(s0 + s1, 3)', 2],
    ['CeilDiv(s0, 2)', 3],
    ['Mod(s0, 3)', 2],
    ['ModularIndexing(s0, 2, 2)', 0],
    ['floor(s0/2)', 2],
    ['ceiling(s0/2)', 3],
    ['1/2', 0.5],
    ['Max(floordiv, 1)', undefined],
    ['unknown(s0)', undefined],
    ['s0/0', undefined],
    ['s0 %', undefined],
    ['s0)', undefined],
    ["__import__('os')", undefined],
    ['', undefined],
  ])('%s is %s', (text, expected) => {
    expect(value(text, { s0: 5, s1: 3 })).toBe(expected);
  });

  it('deep and long texts have no value', () => {
    expect(parseExpression(`${'('.repeat(5000)}1${')'.repeat(5000)}`)).toBeUndefined();
    expect(parseExpression('1+'.repeat(20_000))).toBeUndefined();
  });

  it('finds symbols and solves for one', () => {
    const parsed = parseExpression('2*s0 + s1')!;
    expect(symbolsOf(parsed)).toEqual(['s0', 's1']);
    expect(solve(parsed, 11, 's0', new Map([['s1', 1]]))).toBe(5);
    expect(solve(parsed, 12, 's0', new Map([['s1', 1]]))).toBeUndefined();
    expect(solve(parseExpression('s0**2')!, 9, 's0', new Map())).toBeUndefined();
    // one value of several: nothing follows from it
    expect(solve(parseExpression('(s0 - 1)//8 + 1')!, 1, 's0', new Map())).toBeUndefined();
    expect(isLinear(parseExpression('3*s0 - s1')!, 's0', new Map([['s1', 1]]))).toBe(true);
    for (const text of ['s0//2', 's0 % 3', 's0**2', 'Max(s0, 5)', 'Max(s0, 90)', '7'])
      expect(isLinear(parseExpression(text)!, 's0', new Map())).toBe(false);
  });

  it('computes what was written', () => {
    type Written = readonly [text: string, value: number];
    const operators = {
      '+': (a: number, b: number) => a + b,
      '-': (a: number, b: number) => a - b,
      '*': (a: number, b: number) => a * b,
    } as const;
    const { expression } = fc.letrec<{ expression: Written }>((tie) => ({
      expression: fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        fc.nat({ max: 9 }).map((n): Written => [String(n), n]),
        fc.constant<Written>(['s0', 7]),
        fc
          .tuple(tie('expression'), fc.constantFrom('+', '-', '*'), tie('expression'))
          .map(([a, op, b]): Written => [`(${a[0]} ${op} ${b[0]})`, operators[op](a[1], b[1])]),
        fc
          .tuple(tie('expression'), tie('expression'))
          .map(([a, b]): Written => [`Max(${a[0]}, ${b[0]})`, Math.max(a[1], b[1])]),
      ),
    }));
    fc.assert(
      fc.property(expression, ([text, expected]) => {
        expect(value(text, { s0: 7 })).toBe(expected);
      }),
    );
  });
});
