/**
 * @file Sizes that follow from free dimensions. A model is traced at several sizes; a number that differs between the
 * runs must be an expression of the sizes, which is found from the first runs and must give the number of all others too.
 */

/** An expression in the symbols of free dimensions. */
export type SizeExpression =
  | number
  | { readonly symbol: string }
  | { readonly op: ScalarOp; readonly of: readonly SizeExpression[] };

/** Operators of expressions. */
export type ScalarOp = 'add' | 'mul' | 'floordiv' | 'truediv' | 'sqrt';

/** The sizes of one run, by symbol. */
export type Sizes = Readonly<Record<string, number>>;

/** The kinds of numbers that a trace finds expressions for. */
export type NumberKind = 'int' | 'float';

/** One run: its sizes, and the number in question there. */
interface Sample {
  readonly at: Sizes;
  readonly value: number;
}

/**
 * The expression that gives `values[i]` at `runs[i]`, or null where none of the forms we know does. The first run is the example,
 * the next ones have one symbol doubled each, and all symbols differ from the example in the one after them.
 */
export function solveSize(runs: readonly Sizes[], values: readonly number[], kind: NumberKind): SizeExpression | null {
  const samples = runs.map((at, i): Sample => ({ at, value: values[i]! }));
  const fits = (expression: SizeExpression): boolean =>
    samples.every(({ at, value }) => same(evaluateSize(expression, at), value));
  for (const each of candidates(samples, kind)) if (each !== null && fits(each)) return each;
  return null;
}

function same(a: number, b: number): boolean {
  return a === b || (!Number.isInteger(b) && Math.abs(a - b) <= 1e-14 * Math.abs(b));
}

function* candidates(samples: readonly Sample[], kind: NumberKind): Generator<SizeExpression | null> {
  const base = samples[0]!;
  const symbols = Object.keys(base.at);
  yield base.value;
  for (const symbol of symbols) yield { symbol };
  const depends = symbols.filter((_, i) => samples[1 + i]?.value !== base.value);
  yield affine(samples, depends);
  yield power(samples, depends, kind);
  if (depends.length === 2) yield bilinear(samples, depends);
}

/** `c + a*s0 + b*s1`, all over a common divisor. */
function affine(samples: readonly Sample[], depends: readonly string[]): SizeExpression | null {
  const base = samples[0]!;
  const symbols = Object.keys(base.at);
  const slopes = depends.map((symbol) => {
    const size = base.at[symbol]!;
    return (samples[1 + symbols.indexOf(symbol)]!.value - base.value) / size;
  });
  const constant = base.value - slopes.reduce((sum, slope, i) => sum + slope * base.at[depends[i]!]!, 0);
  const divisor = commonDivisor([...slopes, constant]);
  if (divisor === null) return null;
  const terms: SizeExpression[] = depends.map((symbol, i) => times(Math.round(slopes[i]! * divisor), { symbol }));
  const rest = Math.round(constant * divisor);
  const whole = sum(rest === 0 ? terms : [...terms, rest]);
  if (divisor === 1) return whole;
  const floored: SizeExpression = { op: 'floordiv', of: [whole, divisor] };
  if (samples.every(({ at, value }) => evaluateSize(floored, at) === value)) return floored;
  return { op: 'floordiv', of: [sum([whole, divisor - 1]), divisor] }; // rounded up
}

/** The smallest number that makes all of them whole. */
function commonDivisor(numbers: readonly number[]): number | null {
  for (let divisor = 1; divisor <= 64; divisor++)
    if (numbers.every((value) => Math.abs(value * divisor - Math.round(value * divisor)) < 1e-9)) return divisor;
  return null;
}

/** `c * s0^p * s1^q`, with square roots and quotients for floats. */
function power(samples: readonly Sample[], depends: readonly string[], kind: NumberKind): SizeExpression | null {
  const base = samples[0]!;
  const symbols = Object.keys(base.at);
  const exponents = depends.map((symbol) => Math.log2(samples[1 + symbols.indexOf(symbol)]!.value / base.value));
  if (exponents.some((power) => !Number.isFinite(power) || Math.abs(power * 2 - Math.round(power * 2)) > 1e-9))
    return null;
  const halves = exponents.map((power) => Math.round(power * 2));
  if (kind === 'int' && halves.some((half) => half <= 0 || half % 2 !== 0)) return null;
  const scale = halves.reduce((rest, half, i) => rest / base.at[depends[i]!]! ** (half / 2), base.value);
  const coefficient = kind === 'float' ? scale : Math.round(scale);
  const factor = (symbol: string, half: number): SizeExpression => {
    const whole: SizeExpression[] = Array.from({ length: Math.floor(half / 2) }, () => ({ symbol }));
    return product(half % 2 === 0 ? whole : [...whole, { op: 'sqrt', of: [{ symbol }] }]);
  };
  const over = product(depends.flatMap((symbol, i) => (halves[i]! > 0 ? [factor(symbol, halves[i]!)] : [])));
  const under = product(depends.flatMap((symbol, i) => (halves[i]! < 0 ? [factor(symbol, -halves[i]!)] : [])));
  const top = typeof over === 'number' ? coefficient : times(coefficient, over);
  return typeof under === 'number' ? top : { op: 'truediv', of: [top, under] };
}

/** `c + a*s + b*t + d*s*t` */
function bilinear(samples: readonly Sample[], depends: readonly string[]): SizeExpression | null {
  const [s, t] = depends as [string, string];
  const base = samples[0]!;
  const symbols = Object.keys(base.at);
  const [x, y] = [base.at[s]!, base.at[t]!];
  const alongS = samples[1 + symbols.indexOf(s)]!.value - base.value; // a*x + d*x*y
  const alongT = samples[1 + symbols.indexOf(t)]!.value - base.value; // b*y + d*x*y
  const far = samples[1 + symbols.length]!;
  const [p, q] = [far.at[s]! / x - 1, far.at[t]! / y - 1];
  const cross = (far.value - base.value - p * alongS - q * alongT) / (p * q); // d*x*y
  const exact = [base.value - alongS - alongT + cross, (alongS - cross) / x, (alongT - cross) / y, cross / (x * y)];
  const numbers = exact.map(Math.round);
  if (numbers.some((value, i) => Math.abs(value - exact[i]!) > 1e-6)) return null;
  const [c, a, b, d] = numbers as [number, number, number, number];
  const terms: (readonly [number, SizeExpression])[] = [
    [a, { symbol: s }],
    [b, { symbol: t }],
    [d, product([{ symbol: s }, { symbol: t }])],
  ];
  const used = terms.filter(([factor]) => factor !== 0).map(([factor, term]) => times(factor, term));
  return sum(c === 0 ? used : [...used, c]);
}

function sum(terms: readonly SizeExpression[]): SizeExpression {
  if (terms.length === 0) return 0;
  return terms.reduce((a, b) => ({ op: 'add', of: [a, b] }));
}

function product(factors: readonly SizeExpression[]): SizeExpression {
  if (factors.length === 0) return 1;
  return factors.reduce((a, b) => ({ op: 'mul', of: [a, b] }));
}

function times(factor: number, of: SizeExpression): SizeExpression {
  return factor === 1 ? of : { op: 'mul', of: [factor, of] };
}

/** The value of an expression at given sizes. @example evaluateSize({ op: 'mul', of: [2, { symbol: 's0' }] }, { s0: 4 }) // 8 */
function evaluateSize(expression: SizeExpression, at: Sizes): number {
  if (typeof expression === 'number') return expression;
  if ('symbol' in expression) return at[expression.symbol]!;
  const [a = 0, b = 0] = expression.of.map((part) => evaluateSize(part, at));
  switch (expression.op) {
    case 'add':
      return a + b;
    case 'mul':
      return a * b;
    case 'floordiv':
      return Math.floor(a / b);
    case 'truediv':
      return a / b;
    case 'sqrt':
      return Math.sqrt(a);
  }
}

/** An expression as text. @example formatSize({ op: 'mul', of: [2, { symbol: 's0' }] }) // '2*s0' */
export function formatSize(expression: SizeExpression, inProduct = false): string {
  if (typeof expression === 'number') return String(expression);
  if ('symbol' in expression) return expression.symbol;
  const { op, of } = expression;
  if (op === 'add') {
    const text = of
      .map((part) => formatSize(part))
      .join(' + ')
      .replaceAll('+ -', '- ');
    return inProduct ? `(${text})` : text;
  }
  if (op === 'mul') return of.map((part) => formatSize(part, true)).join('*');
  return `${op}(${of.map((part) => formatSize(part)).join(', ')})`;
}
