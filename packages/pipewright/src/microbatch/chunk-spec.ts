/** @file What happens to each value of a batch when it is cut into microbatches, and to each result when they are merged. */
import { inspect } from 'node:util';
import { type Tensor, tensor } from '@pipewright/torch';
import { checkArgument, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/** The dimension that is cut where none is given. */
export const DEFAULT_CHUNK_DIM = 0;

/**
 * Cut a tensor along a dimension; merge by concatenating along it. Negative dimensions count from the last.
 *
 * @example splitArgsKwargsIntoChunks([x], {}, 4, { argsChunkSpec: [new TensorChunkSpec(1)] })
 */
export class TensorChunkSpec {
  readonly splitDim: number;

  constructor(splitDim: number = DEFAULT_CHUNK_DIM) {
    if (!Number.isSafeInteger(splitDim)) {
      throw new PipelineError(
        'BAD_CHUNK_SPEC',
        `TensorChunkSpec: the dimension is ${show(splitDim)}; give a whole number, such as 0`,
      );
    }
    this.splitDim = splitDim;
  }

  /** Specs for positional inputs, nested alike. @example TensorChunkSpec.fromTuple([0, [1, 1]]) */
  static fromTuple(dims: readonly DimTree[]): SpecTree[] {
    checkArgument('TensorChunkSpec.fromTuple', Array.isArray(dims), ['the argument', dims], 'an array of dimensions');
    return dims.map(specsOf);
  }

  /** Specs for named inputs, nested alike. @example TensorChunkSpec.fromDict({ ids: 0, mask: 1 }) */
  static fromDict(dims: Readonly<Record<string, DimTree>>): Record<string, SpecTree> {
    checkArgument('TensorChunkSpec.fromDict', isPlain(dims), ['the argument', dims], 'dimensions by name');
    return Object.fromEntries(Object.entries(dims).map(([name, dim]) => [name, specsOf(dim)]));
  }

  toString(): string {
    return `TensorChunkSpec(${this.splitDim})`;
  }
}

/**
 * Every microbatch gets the value whole; when merging, all must be equal and the first is taken.
 *
 * @example splitArgsKwargsIntoChunks([x, mask], {}, 4, { argsChunkSpec: [new TensorChunkSpec(0), new Replicate()] })
 */
export class Replicate {
  toString(): string {
    return 'Replicate()';
  }
}

/**
 * Merges by folding over the microbatches in order, starting with a value. For merging only.
 *
 * @example mergeChunks([3, 5, 4], new CustomReducer(0, Math.max)) // 5
 */
export class CustomReducer<T = unknown> {
  readonly initValue: T;
  readonly reduceFn: (sum: T, next: T) => T;

  constructor(initValue: T, reduceFn: (sum: T, next: T) => T) {
    if (typeof reduceFn !== 'function') {
      throw new PipelineError(
        'BAD_CHUNK_SPEC',
        `${new.target.name}: the second argument is ${show(reduceFn)}; give a function of the value so far and the next one`,
      );
    }
    this.initValue = initValue;
    this.reduceFn = reduceFn;
  }

  toString(): string {
    return `${this.constructor.name}(${this.reduceFn.name})`;
  }
}

/** A custom reducer that makes one loss of those of the microbatches. @example new LossReducer(0, (a, b) => a + b) */
export class LossReducer<T = unknown> extends CustomReducer<T> {}

for (const type of [TensorChunkSpec, Replicate, CustomReducer])
  Object.defineProperty(type.prototype, inspect.custom, {
    value(this: object): string {
      return String(this);
    },
  });

/** Adds the losses of all microbatches. @example mergeChunks(losses, sumReducer) */
export const sumReducer: LossReducer<Tensor> = new LossReducer(
  tensor(0, { dtype: 'float32' }),
  function add(sum, next) {
    return sum.add(next);
  },
);

/** What happens to one leaf. The class `Replicate` stands for an instance of it, as in PyTorch. */
export type ChunkSpec = TensorChunkSpec | Replicate | typeof Replicate | CustomReducer<never> | null | undefined;

/** Specs nested like the values they are for. */
export type SpecTree =
  | ChunkSpec
  | readonly SpecTree[]
  | { readonly [name: string]: SpecTree }
  | ReadonlyMap<string | number, SpecTree>;

/** Dimensions nested like the values they are for. */
export type DimTree = number | readonly DimTree[] | { readonly [name: string]: DimTree };

/** Whether a spec says that every microbatch gets the whole value. */
export function isReplicate(spec: unknown): boolean {
  return spec === Replicate || spec instanceof Replicate;
}

/** A spec in words, for messages. */
export function formatChunkSpec(spec: unknown): string {
  if (spec === Replicate) return 'Replicate';
  if (spec instanceof TensorChunkSpec || spec instanceof Replicate || spec instanceof CustomReducer)
    return String(spec);
  return show(spec);
}

/** Whether a value is an object of names, and not of some class. */
function isPlain(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function specsOf(dims: DimTree): SpecTree {
  if (typeof dims === 'number') return new TensorChunkSpec(dims);
  if (Array.isArray(dims)) return dims.map(specsOf);
  if (isPlain(dims)) return TensorChunkSpec.fromDict(dims as Record<string, DimTree>);
  throw new PipelineError(
    'BAD_CHUNK_SPEC',
    `TensorChunkSpec: ${show(dims)} is not a dimension; give whole numbers, in arrays and objects shaped like the inputs`,
  );
}
