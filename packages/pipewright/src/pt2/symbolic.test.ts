import { describe, expect, it } from 'vitest';
import { evaluate, parseExpression } from '../graph/expression.ts';
import { formatSymbolic } from './symbolic.ts';

const s = "Symbol('s0', positive=True, integer=True)";

describe('formatSymbolic', () => {
  it.each([
    [s, 's0'],
    ["Symbol('u1', integer=True)", 'u1'],
    ['Integer(5)', '5'],
    [`Mul(Integer(2), ${s})`, '2*s0'],
    [`Add(${s}, Integer(-1))`, 's0 - 1'],
    [`Mul(Integer(-1), ${s})`, '-s0'],
    [`Mul(Add(${s}, Integer(1)), Integer(3))`, '(s0 + 1)*3'],
    [`Pow(${s}, Integer(2))`, 's0**2'],
    [`Pow(${s}, Integer(-1))`, 's0**(-1)'],
    [`FloorDiv(Add(${s}, Integer(1)), Integer(2))`, '(s0 + 1)//2'],
    [`Mul(Integer(4), FloorDiv(${s}, Integer(4)))`, '4*(s0//4)'],
    [`PythonMod(${s}, Integer(8))`, 's0 % 8'],
    [`Max(Integer(1), ${s})`, 'Max(1, s0)'],
    ['Rational(1, 2)', '1/2'],
    ['s0 + 1', 's0 + 1'],
    ["__import__('os').system('x')", "__import__('os').system('x')"],
    ['', 'unknown()'],
  ])('%s is %s', (source, text) => {
    expect(formatSymbolic(source)).toBe(text);
  });

  it('means the same as the source', () => {
    const source = `Add(Mul(Integer(2), FloorDiv(Add(${s}, Integer(3)), Integer(2))), Mul(Integer(-1), PythonMod(${s}, Integer(3))))`;
    const parsed = parseExpression(formatSymbolic(source));
    for (let n = 0; n < 20; n++)
      expect(parsed && evaluate(parsed, new Map([['s0', n]]))).toBe(2 * Math.floor((n + 3) / 2) - (n % 3));
  });

  it('is bounded', () => {
    expect(formatSymbolic('Add('.repeat(30_000))).toBe('unknown()');
    expect(formatSymbolic(`${'Abs('.repeat(500)}1${')'.repeat(500)}`).length).toBeGreaterThan(0);
  });
});
