/**
 * @file What the inputs of a graph must be: the number of dimensions and the element type, fixed sizes, and dynamic sizes
 * that agree with each other and lie in their ranges. A lower bound up to 2 is not held against a size unless it is marked
 * as strict: the exporter writes 2 for every dynamic size, and 0 and 1 work.
 */
import { Tensor } from '@pipewright/torch';
import { describeHandle, hasDescription } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { type Expression, evaluate, isLinear, parseExpression, solve, symbolsOf } from '../graph/expression.ts';
import type { Dim, DimRange, Graph, PlaceholderNode, ScalarMeta, TensorMeta, TraceFacts } from '../graph/graph.ts';
import { placeholdersOf } from '../graph/graph.ts';
import { formatMeta } from '../graph/print.ts';

interface SizeCheck {
  readonly input: number;
  /** Null for a number that is an input itself. */
  readonly dim: number | null;
  readonly expression: Expression;
  readonly text: string;
}

interface Range extends DimRange {
  readonly text: string;
  readonly expression: Expression;
}

/** Checks the inputs of calls of one graph. */
export class InputGuards {
  private readonly placeholders: readonly PlaceholderNode[];
  private readonly traced: TraceFacts | null;
  private readonly plain: SizeCheck[] = [];
  private readonly derived: SizeCheck[] = [];
  private readonly ranges: Range[] = [];
  /** The inputs that passed last: inputs like them are not checked again. */
  private last: readonly (Float64Array | number | boolean)[] | null = null;

  constructor(graph: Graph) {
    this.placeholders = placeholdersOf(graph);
    this.traced = graph.traced ?? null;
    this.placeholders.forEach(({ meta }, input) => {
      if (isTensorMeta(meta)) meta.shape.forEach((size, dim) => this.addSize(size, input, dim));
      else if (isScalarMeta(meta) && meta.value !== undefined) this.addSize(meta.value, input, null);
    });
    for (const [text, range] of Object.entries(graph.ranges ?? {})) {
      const expression = parseExpression(text);
      if (expression !== undefined) this.ranges.push({ ...range, text, expression });
    }
  }

  private addSize(size: Dim, input: number, dim: number | null): void {
    if (typeof size === 'number') return;
    const expression = parseExpression(size);
    if (expression === undefined) return;
    ('symbol' in expression ? this.plain : this.derived).push({ input, dim, expression, text: size });
  }

  /** Throws where an input is not what the graph was made for. */
  check(inputs: readonly unknown[], accepts: (input: Tensor, meta: TensorMeta) => boolean): void {
    this.last = null;
    this.checkAll(inputs, accepts);
    if (inputs.every((input) => input instanceof Tensor || typeof input === 'number' || typeof input === 'boolean'))
      this.last = inputs.map((input) => (input instanceof Tensor ? describeHandle(input.handle) : (input as number)));
  }

  /** Whether the inputs are like those that passed the last check, so that they need none. */
  isLikeLast(inputs: readonly unknown[]): boolean {
    const { last } = this;
    if (last === null || last.length !== inputs.length) return false;
    for (let i = 0; i < last.length; i++) {
      const input = inputs[i];
      const before = last[i]!;
      if (typeof before !== 'object') {
        if (input !== before) return false;
      } else if (!(input instanceof Tensor) || !hasDescription(input.handle, before)) return false;
    }
    return true;
  }

  private checkAll(inputs: readonly unknown[], accepts: (input: Tensor, meta: TensorMeta) => boolean): void {
    const shapes = this.placeholders.map((node, i) => this.checkInput(node, inputs[i], accepts));
    if (this.plain.length === 0 && this.derived.length === 0) return;
    const symbols = new Map<string, number>();
    const firstSeen = new Map<string, string>();
    for (const { input, dim, expression } of this.plain) {
      const value = sizeAt(shapes[input], dim);
      const { symbol } = expression as { symbol: string };
      const known = symbols.get(symbol);
      const here = this.placeText(input, dim);
      if (known !== undefined && known !== value)
        throw this.error(
          `${symbol} is ${known} in ${firstSeen.get(symbol)} but ${value} in ${here}; they must be equal`,
        );
      symbols.set(symbol, value);
      firstSeen.set(symbol, here);
    }
    const open = this.derived.filter(
      (check) => !this.checkDerived(check, sizeAt(shapes[check.input], check.dim), symbols),
    );
    for (const check of open) this.checkDerived(check, sizeAt(shapes[check.input], check.dim), symbols);
    this.checkRanges(symbols, firstSeen);
  }

  private checkInput(
    node: PlaceholderNode,
    input: unknown,
    accepts: (input: Tensor, meta: TensorMeta) => boolean,
  ): readonly number[] {
    const { meta } = node;
    if (isScalarMeta(meta)) return [this.checkScalar(node, meta, input)];
    if (!isTensorMeta(meta)) return [];
    if (!(input instanceof Tensor))
      throw this.error(`input '${node.name}' is ${formatMeta(meta)}, got ${describe(input)}`);
    const { shape } = input;
    if (shape.length !== meta.shape.length)
      throw this.error(
        `input '${node.name}' is ${formatMeta(meta)} with ${meta.shape.length} dimensions, got shape [${shape.join(', ')}]`,
      );
    if (input.dtype.name !== meta.dtype && !accepts(input, meta))
      throw this.error(
        `input '${node.name}' is ${meta.dtype}, got ${input.dtype.name}; convert it: x.to('${meta.dtype}')`,
      );
    for (let i = 0; i < shape.length; i++) {
      const size = meta.shape[i]!;
      if (typeof size === 'number' && size !== shape[i])
        throw this.error(
          `input '${node.name}': dimension ${i} is ${shape[i]}, but the graph was made for ${size} (${formatMeta(meta)}); ${this.wayOut(i)}`,
        );
    }
    return shape;
  }

  /** How a dimension that is fixed becomes free. */
  private wayOut(dim: number): string {
    if (this.traced === null) return 'export it with that dimension dynamic';
    const { fixedBecause } = this.traced;
    const how = `trace it with a name for that dimension: dynamicShapes: [{ ${dim}: '${dim === 0 ? 'batch' : 'size'}' }]`;
    // Unasked, the first dimension would be free: then the reason is what matters.
    return fixedBecause === null || dim > 0 ? how : `it could not be left free: ${fixedBecause}`;
  }

  private checkScalar(node: PlaceholderNode, meta: ScalarMeta, input: unknown): number {
    const fits =
      meta.scalar === 'bool'
        ? typeof input === 'boolean'
        : typeof input === 'number' && (meta.scalar === 'float' || Number.isSafeInteger(input));
    if (!fits) throw this.error(`input '${node.name}' is a number of kind ${meta.scalar}, got ${describe(input)}`);
    if (typeof meta.value === 'number' && meta.scalar === 'int' && meta.value !== input)
      throw this.error(`input '${node.name}' is ${String(input)}, but the graph was made for ${meta.value}`);
    return Number(input);
  }

  /** Checks a size by what is known of the symbols, or finds out one of them; false where neither can be done yet. */
  private checkDerived(
    { input, dim, expression, text }: SizeCheck,
    value: number,
    symbols: Map<string, number>,
  ): boolean {
    const open = symbolsOf(expression).filter((symbol) => !symbols.has(symbol));
    if (open.length > 0) {
      const [symbol] = open as [string];
      if (open.length > 1 || !isLinear(expression, symbol, symbols)) return false;
      const found = solve(expression, value, symbol, symbols);
      if (found === undefined)
        throw this.error(`${this.placeText(input, dim)} is ${value}, which ${text} is for no whole ${symbol}`);
      symbols.set(symbol, found);
      return true;
    }
    const expected = evaluate(expression, symbols);
    if (expected !== undefined && expected !== value) {
      const where = [...symbols].map(([name, size]) => `${name} = ${size}`).join(', ');
      throw this.error(
        `${this.placeText(input, dim)} is ${value}, but must be ${text}, which is ${expected} (${where})`,
      );
    }
    return true;
  }

  private checkRanges(symbols: ReadonlyMap<string, number>, seen: ReadonlyMap<string, string>): void {
    for (const { text, expression, min, max, strict } of this.ranges) {
      const value = evaluate(expression, symbols);
      if (value === undefined) continue;
      if ((max === null || value <= max) && (min === null || (min <= 2 && strict !== true) || value >= min)) continue;
      const where = seen.get(text);
      const bounds = `${min === null ? '' : `at least ${min}`}${min !== null && max !== null ? ' and ' : ''}${max === null ? '' : `at most ${max}`}`;
      throw this.error(`${text}${where === undefined ? '' : ` (${where})`} is ${value}, but must be ${bounds}`);
    }
  }

  private placeText(input: number, dim: number | null): string {
    const name = this.placeholders[input]?.name ?? String(input);
    return dim === null ? `input '${name}'` : `dimension ${dim} of input '${name}'`;
  }

  private error(text: string): PipelineError {
    return new PipelineError('GRAPH_INPUT', `GraphModule.forward: ${text}`);
  }
}

function isTensorMeta(meta: unknown): meta is TensorMeta {
  return typeof meta === 'object' && meta !== null && 'dtype' in meta;
}

function isScalarMeta(meta: unknown): meta is ScalarMeta {
  return typeof meta === 'object' && meta !== null && 'scalar' in meta;
}

function sizeAt(shape: readonly number[] | undefined, dim: number | null): number {
  return shape![dim ?? 0]!;
}

function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (value instanceof Tensor) return 'a tensor';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  return typeof value === 'object' ? 'an object' : `${typeof value} ${String(value)}`;
}
