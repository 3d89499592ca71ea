/** @file The arguments of recorded calls as arguments of nodes: tensors by reference, everything else as plain data. */
import { DType, Generator, Tensor } from '@pipewright/torch';
import { type BoundArgument, type BoundOp, withRecorder } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { isPlainObject } from '../base/tree.ts';
import type { GraphArgument, NodeReference } from '../graph/graph.ts';
import { here } from './source-line.ts';
import { encodeFloat, encodeNumber, encodePlain } from './values.ts';

/** The arguments of a call: by position, then by name. */
export interface EncodedCall {
  readonly args: GraphArgument[];
  readonly kwargs: Record<string, GraphArgument>;
}

/** Encodes arguments; `referenceTo` says which node a tensor is, `read` throws where a tensor's value must not be read. */
export class ArgumentEncoder {
  private readonly referenceTo: (tensor: Tensor) => NodeReference;
  private readonly read: (tensor: Tensor, what: string) => void;

  constructor(referenceTo: (tensor: Tensor) => NodeReference, read: (tensor: Tensor, what: string) => void) {
    this.referenceTo = referenceTo;
    this.read = read;
  }

  /** The arguments of an operator, given in schema order. */
  call(op: BoundOp, given: readonly unknown[]): EncodedCall {
    const args: GraphArgument[] = [];
    const kwargs: Record<string, GraphArgument> = {};
    const device = op.positions.get('device');
    const isFactory = device !== undefined && !given.flat().some((value) => value instanceof Tensor);
    let positional = true;
    op.args.forEach((arg, i) => {
      // The device of a new tensor is always written down, so that a stage can be moved to another one.
      const value = isFactory && i === device ? (given[i] ?? 'cpu') : given[i];
      if (arg.keywordOnly || value === undefined) positional = false;
      if (value === undefined) return;
      const encoded = this.argument(value, arg, op);
      if (positional) args.push(encoded);
      else kwargs[arg.key] = encoded;
    });
    return { args, kwargs };
  }

  /** Any value: an argument of a custom function, for example. */
  value(value: unknown, where: string): GraphArgument {
    if (value instanceof Tensor) return this.referenceTo(value);
    if (Array.isArray(value)) return value.map((item) => this.value(item, where));
    const encoded = encodePlain(value);
    if (encoded !== undefined) return encoded;
    if (isPlainObject(value))
      return { dict: Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.value(item, where)])) };
    const isGenerator = value instanceof Generator;
    throw new PipelineError(
      'TRACE_UNTRACEABLE',
      `trace: ${where}${here()} takes ${isGenerator ? 'a Generator' : `a ${typeof value}`}, which a graph cannot hold; ${isGenerator ? 'use the default generator (manualSeed)' : 'pass tensors, numbers, strings, and arrays and plain objects of them'}`,
    );
  }

  private argument(value: unknown, arg: BoundArgument, op: BoundOp): GraphArgument {
    const type = arg.type.replace(/\?$/, '').replace(/\??\[\d*\]$/, '');
    if (value === null) return null;
    if (ArrayBuffer.isView(value)) return Array.from(value as unknown as ArrayLike<number>, encodeNumber);
    if (isList(value)) return value.map((item) => this.typed(item, type, op));
    return this.typed(value, type, op);
  }

  private typed(value: unknown, type: string, op: BoundOp): GraphArgument {
    if (value instanceof Tensor) {
      if (type === 'Tensor') return this.referenceTo(value);
      this.read(value, `a tensor as the number that ${op.fullName} takes`);
      return encodePlain(withRecorder(null, () => value.itemValue())) as GraphArgument; // a constant
    }
    switch (type) {
      case 'ScalarType':
        return { dtype: value instanceof DType ? value.name : String(value) };
      case 'Device':
        return { device: String(value) };
      case 'Layout':
        return { layout: String(value) };
      case 'MemoryFormat':
        return { memoryFormat: String(value) };
      case 'float':
        return typeof value === 'number' ? encodeFloat(value) : this.value(value, op.fullName);
      default:
        return this.value(value, op.fullName);
    }
  }
}
