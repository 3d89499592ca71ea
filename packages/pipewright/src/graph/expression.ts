/**
 * @file Expressions in sizes, as text: `2*s0 + 1`, `s0//2`, `Max(s0, 4)`. They are parsed and computed here, never
 * evaluated as code. A function that is not known makes an expression opaque: it prints, but has no value.
 */
import { checkArgument } from '../base/checks.ts';

/** A parsed expression. */
export type Expression =
  | { readonly number: number }
  | { readonly symbol: string }
  | { readonly call: string; readonly args: readonly Expression[] };

const longest = 20_000;
const deepest = 200;

/** Parses an expression, or returns nothing where the text is none. @example parseExpression('2*s0') */
export function parseExpression(text: string): Expression | undefined {
  checkArgument('parseExpression', typeof text === 'string', ['the text', text], "an expression such as '2*s0 + 1'");
  if (text.length > longest) return undefined;
  const tokens = text.match(/\d+(?:\.\d+)?|[A-Za-z_]\w*|\*\*|\/\/|[-+*/%(),]|\S/g) ?? [];
  try {
    const parser = new Parser(tokens);
    return parser.whole();
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

class Parser {
  private readonly tokens: readonly string[];
  private at = 0;
  private depth = 0;

  constructor(tokens: readonly string[]) {
    this.tokens = tokens;
  }

  whole(): Expression {
    const result = this.sum();
    if (this.at < this.tokens.length) throw new SyntaxError('more after the end');
    return result;
  }

  private take(...wanted: readonly string[]): string | undefined {
    const token = this.tokens[this.at];
    if (token === undefined || !wanted.includes(token)) return undefined;
    this.at++;
    return token;
  }

  private sum(): Expression {
    if (++this.depth > deepest) throw new SyntaxError('too deep');
    let left = this.product();
    for (let op = this.take('+', '-'); op !== undefined; op = this.take('+', '-'))
      left = { call: op, args: [left, this.product()] };
    this.depth--;
    return left;
  }

  private product(): Expression {
    let left = this.negative();
    for (let op = this.take('*', '/', '//', '%'); op !== undefined; op = this.take('*', '/', '//', '%'))
      left = { call: op, args: [left, this.negative()] };
    return left;
  }

  private negative(): Expression {
    let negations = 0;
    while (this.take('-') !== undefined) negations++;
    const value = this.power();
    return negations % 2 === 0 ? value : { call: '-', args: [{ number: 0 }, value] };
  }

  private power(): Expression {
    const base = this.atom();
    if (this.take('**') === undefined) return base;
    if (++this.depth > deepest) throw new SyntaxError('too deep');
    const exponent = this.negative();
    this.depth--;
    return { call: '**', args: [base, exponent] };
  }

  private atom(): Expression {
    const token = this.tokens[this.at++];
    if (token === undefined) throw new SyntaxError('ends early');
    if (/^\d/.test(token)) return { number: Number(token) };
    if (token === '(') {
      const inner = this.sum();
      if (this.take(')') === undefined) throw new SyntaxError('no )');
      return inner;
    }
    if (!/^[A-Za-z_]/.test(token)) throw new SyntaxError(token);
    if (this.take('(') === undefined) return { symbol: token };
    const args: Expression[] = [];
    if (this.take(')') !== undefined) return { call: token, args };
    do args.push(this.sum());
    while (this.take(',') !== undefined);
    if (this.take(')') === undefined) throw new SyntaxError('no )');
    return { call: token, args };
  }
}

const floorDiv = (a: number, b: number): number | undefined => (b === 0 ? undefined : Math.floor(a / b));
const modulo = (a: number, b: number): number | undefined => (b === 0 ? undefined : a - b * Math.floor(a / b));

const functions: Readonly<Record<string, (...values: number[]) => number | undefined>> = {
  '+': (a = 0, b = 0) => a + b,
  '-': (a = 0, b = 0) => a - b,
  '*': (a = 0, b = 0) => a * b,
  '/': (a = 0, b = 0) => (b === 0 ? undefined : a / b),
  '//': (a = 0, b = 0) => floorDiv(a, b),
  '%': (a = 0, b = 0) => modulo(a, b),
  '**': (a = 0, b = 0) => a ** b,
  Max: (...values) => Math.max(...values),
  Min: (...values) => Math.min(...values),
  Abs: (a = 0) => Math.abs(a),
  Mod: (a = 0, b = 0) => modulo(a, b),
  PythonMod: (a = 0, b = 0) => modulo(a, b),
  FloorDiv: (a = 0, b = 0) => floorDiv(a, b),
  CleanDiv: (a = 0, b = 0) => floorDiv(a, b),
  CeilDiv: (a = 0, b = 0) => (b === 0 ? undefined : Math.ceil(a / b)),
  ModularIndexing: (a = 0, b = 0, c = 0) => (b === 0 ? undefined : modulo(Math.floor(a / b), c)),
  floor: (a = 0) => Math.floor(a),
  ceiling: (a = 0) => Math.ceil(a),
  FloorToInt: (a = 0) => Math.floor(a),
  CeilToInt: (a = 0) => Math.ceil(a),
  TruncToInt: (a = 0) => Math.trunc(a),
  TruncToFloat: (a = 0) => Math.trunc(a),
  IntTrueDiv: (a = 0, b = 0) => (b === 0 ? undefined : a / b),
  FloatTrueDiv: (a = 0, b = 0) => (b === 0 ? undefined : a / b),
  PowByNatural: (a = 0, b = 0) => a ** b,
  FloatPow: (a = 0, b = 0) => a ** b,
  ToFloat: (a = 0) => a,
  Identity: (a = 0) => a,
};

/** The value of an expression, or nothing where a symbol or function is not known. @example evaluate(parseExpression('2*s0'), new Map([['s0', 4]])) // 8 */
export function evaluate(expression: Expression, symbols: ReadonlyMap<string, number>): number | undefined {
  const isExpression = typeof (expression as unknown) === 'object' && expression !== null;
  checkArgument('evaluate', isExpression, ['the expression', expression], 'what parseExpression returns');
  if ('number' in expression) return expression.number;
  checkArgument('evaluate', symbols instanceof Map, ['the second argument', symbols], 'a Map of numbers by symbol');
  if ('symbol' in expression) return symbols.get(expression.symbol);
  const run = Object.hasOwn(functions, expression.call) ? functions[expression.call] : undefined;
  if (run === undefined) return undefined;
  const values: number[] = [];
  for (const arg of expression.args) {
    const value = evaluate(arg, symbols);
    if (value === undefined) return undefined;
    values.push(value);
  }
  return run(...values);
}

/** The symbols of an expression, each once. */
export function symbolsOf(expression: Expression): string[] {
  if ('symbol' in expression) return [expression.symbol];
  return 'call' in expression ? [...new Set(expression.args.flatMap(symbolsOf))] : [];
}

/**
 * The value of `symbol` that makes the expression `value`, where the expression is linear in it: `2*s0 + 1` is 9 for 4.
 */
export function solve(
  expression: Expression,
  value: number,
  symbol: string,
  symbols: ReadonlyMap<string, number>,
): number | undefined {
  const at = (x: number): number | undefined => evaluate(expression, new Map(symbols).set(symbol, x));
  const [zero, one] = [at(0), at(1)];
  if (zero === undefined || one === undefined || !isLinear(expression, symbol, symbols)) return undefined;
  const found = (value - zero) / (one - zero);
  return Number.isInteger(found) && at(found) === value ? found : undefined;
}

/** Whether an expression grows by the same number with each step of `symbol`: `2*s0 + 1` does, `s0//2` does not. */
export function isLinear(expression: Expression, symbol: string, symbols: ReadonlyMap<string, number>): boolean {
  const at = (x: number): number | undefined => evaluate(expression, new Map(symbols).set(symbol, x));
  const [zero, one] = [at(0), at(1)];
  if (zero === undefined || one === undefined || one === zero) return false;
  return [2, 3, 5, 7, 11, 1024, 99_991].every((x) => at(x) === zero + x * (one - zero));
}
