/** @file How the arguments of a call become the inputs of a graph: trees are matched, constants compared. */
import { Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import type { CallSignature, Graph, GraphArgument } from './graph.ts';
import { floatNumber, placeholdersOf } from './graph.ts';
import { formatArgument } from './print.ts';

/** Turns the arguments of calls of one graph into its inputs. */
export class ArgumentBinder {
  private readonly signature: CallSignature;
  private readonly positions: ReadonlyMap<string, number>;
  private readonly isFlat: boolean;

  constructor(graph: Graph) {
    const names = placeholdersOf(graph).map((node) => node.name);
    this.positions = new Map(names.map((name, i) => [name, i]));
    this.signature = graph.signature ?? { args: names.map((ref) => ({ ref })), kwargs: {} };
    this.isFlat =
      Object.keys(this.signature.kwargs).length === 0 &&
      this.signature.args.length === names.length &&
      this.signature.args.every(
        (arg, i) => typeof arg === 'object' && arg !== null && 'ref' in arg && arg.ref === names[i],
      );
  }

  /**
   * The inputs in the order of the placeholders. Keyword arguments are one object after the positional ones; where they all
   * are tensors, they may also be written out in order.
   */
  bind(given: readonly unknown[]): readonly unknown[] {
    if (this.isFlat && given.length === this.positions.size) return given;
    const { args, kwargs } = this.signature;
    const keys = Object.keys(kwargs);
    const rest = given.slice(args.length);
    const isWrittenOut =
      rest.length === keys.length && rest.length > 0 && rest.every((value) => value instanceof Tensor);
    if (given.length < args.length || (!isWrittenOut && rest.length !== Math.min(1, keys.length)))
      throw this.wrongCount(given.length);
    const named = isWrittenOut ? Object.fromEntries(keys.map((key, i) => [key, rest[i]])) : rest[0];
    const inputs = new Array<unknown>(this.positions.size).fill(undefined);
    args.forEach((pattern, i) => this.match(pattern, given[i], this.nameOf(i), inputs));
    if (keys.length > 0) this.match({ dict: kwargs }, named, 'keyword arguments', inputs);
    return inputs;
  }

  private nameOf(index: number): string {
    return this.signature.names?.[index] ?? `argument ${index}`;
  }

  private match(pattern: GraphArgument, value: unknown, path: string, inputs: unknown[]): void {
    if (typeof pattern === 'object' && pattern !== null) {
      if (isList(pattern)) return this.matchList(pattern, value, path, inputs);
      if ('ref' in pattern) {
        inputs[this.positions.get(pattern.ref)!] = value;
        return;
      }
      if ('dict' in pattern) return this.matchDict(pattern.dict, value, path, inputs);
    }
    const fixed =
      typeof pattern === 'object' && pattern !== null && 'float' in pattern ? floatNumber(pattern.float) : pattern;
    if (Object.is(value ?? null, fixed)) return;
    throw bad(`${path} was ${formatArgument(pattern)} when the graph was made and cannot change, got ${text(value)}`);
  }

  private matchList(patterns: readonly GraphArgument[], value: unknown, path: string, inputs: unknown[]): void {
    if (!Array.isArray(value) || value.length !== patterns.length)
      throw bad(`${path} is a list of ${patterns.length}, got ${text(value)}`);
    patterns.forEach((pattern, i) => this.match(pattern, value[i], `${path}[${i}]`, inputs));
  }

  private matchDict(
    patterns: Readonly<Record<string, GraphArgument>>,
    value: unknown,
    path: string,
    inputs: unknown[],
  ): void {
    const keys = Object.keys(patterns);
    if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Tensor)
      throw bad(`${path}: an object with ${keys.join(', ')} is expected, got ${text(value)}`);
    const given =
      value instanceof Map ? Object.fromEntries(value as Map<string, unknown>) : (value as Record<string, unknown>);
    for (const key of Object.keys(given))
      if (!keys.includes(key)) throw bad(`${path}: unknown name '${key}'; there are ${keys.join(', ')}`);
    for (const key of keys) {
      const pattern = patterns[key] as GraphArgument;
      if (given[key] === undefined && usesInput(pattern)) throw bad(`${path}: '${key}' is missing`);
      this.match(pattern, given[key] ?? (usesInput(pattern) ? undefined : constantOf(pattern)), `'${key}'`, inputs);
    }
  }

  private wrongCount(found: number): PipelineError {
    const { args, kwargs, names } = this.signature;
    const shown = args.map((_, i) => names?.[i] ?? `#${i}`);
    const named = Object.keys(kwargs);
    if (named.length > 0) shown.push(`{ ${named.join(', ')} }`);
    return bad(`takes ${shown.length} arguments (${shown.join(', ')}), got ${found}`);
  }
}

function bad(message: string): PipelineError {
  return new PipelineError('GRAPH_INPUT', `GraphModule.forward: ${message}`);
}

/** Whether a pattern needs the caller to give something. */
function usesInput(pattern: GraphArgument): boolean {
  if (typeof pattern !== 'object' || pattern === null) return false;
  if (Array.isArray(pattern)) return true;
  return 'ref' in pattern || 'dict' in pattern;
}

function constantOf(pattern: GraphArgument): unknown {
  return typeof pattern === 'object' && pattern !== null && 'float' in pattern ? floatNumber(pattern.float) : pattern;
}

function text(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value instanceof Tensor) return 'a tensor';
  if (Array.isArray(value)) return `a list of ${value.length}`;
  return typeof value === 'object' && value !== null ? 'an object' : JSON.stringify(value);
}
