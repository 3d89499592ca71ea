/** @file The arguments of a traced call: which of their tensors' dimensions are free, and examples of other sizes. */
import { type Device, type nn, Tensor, tensor } from '@pipewright/torch';
import { bindOp, callGiven } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { flatten, leafPaths, type TreeSpec, unflatten } from '../base/tree.ts';
import type { CallSignature, GraphArgument } from '../graph/graph.ts';
import type { Sizes } from './sizes.ts';
import { metaTwin } from './twins.ts';
import { encodePlain } from './values.ts';

/** Names of the free dimensions of one tensor, by dimension: `{ 0: 'batch', 1: 'time' }`. */
export type FreeDims = Readonly<Record<number, string>>;

/** Names of the free dimensions of every tensor among the arguments, in order; null for one that has none. */
export type DynamicShapes = readonly (FreeDims | null)[];

interface TensorInput {
  readonly tensor: Tensor;
  readonly name: string;
  readonly device: Device;
  readonly free: FreeDims;
}

/** The call that is traced, taken apart. */
export class ExampleInputs {
  /** The tensors among the arguments, in order. */
  readonly tensors: readonly TensorInput[];
  /** The example's sizes of the free dimensions. */
  readonly sizes: Sizes;
  private readonly leaves: readonly unknown[];
  private readonly spec: TreeSpec;
  private readonly numArgs: number;
  private readonly kwargs: readonly string[];
  private readonly names: readonly string[];

  constructor(module: nn.Module, args: readonly unknown[], options: InputOptions) {
    const { kwargs, dynamicShapes } = options;
    const { leaves, spec } = flatten([...args, ...Object.values(kwargs)]);
    this.leaves = leaves;
    this.spec = spec;
    this.numArgs = args.length;
    this.kwargs = Object.keys(kwargs);
    this.names = [...parameterNames(module, args.length), ...this.kwargs];
    const paths = childrenOf(spec).flatMap((part, i) => leafPaths(part, this.names[i]).map(identifier));
    leaves.forEach((leaf, i) => checkLeaf(leaf, paths[i]!));
    if (JSON.stringify(spec).includes('"mapKeys"'))
      throw new PipelineError('TRACE_INPUT', 'trace: an argument is a Map; give a plain object instead');
    const found = leaves.flatMap((leaf, i) => (leaf instanceof Tensor ? [{ tensor: leaf, name: paths[i]! }] : []));
    const free = freeDims(
      found.map(({ tensor }) => tensor),
      dynamicShapes,
    );
    this.tensors = found.map(({ tensor, name }, i) => ({ tensor, name, device: tensor.device, free: free[i] ?? {} }));
    this.sizes = this.readSizes();
  }

  /** The arguments of `forward` with the tensors that `make` gives for each. */
  call(make: (input: TensorInput) => Tensor): unknown[] {
    let next = 0;
    const leaves = this.leaves.map((leaf) => (leaf instanceof Tensor ? make(this.tensors[next++]!) : leaf));
    const values = unflatten(this.spec, leaves) as unknown[];
    const args = values.slice(0, this.numArgs);
    if (this.kwargs.length === 0) return args;
    return [...args, Object.fromEntries(this.kwargs.map((key, i) => [key, values[this.numArgs + i]]))];
  }

  /** A tensor like an input, of other sizes: without memory, or made of the example's values. */
  resized(input: TensorInput, sizes: Sizes, onMeta: boolean): Tensor {
    const { tensor: example, free } = input;
    const changes = Object.entries(free).filter(([dim, symbol]) => example.size(Number(dim)) !== sizes[symbol]);
    if (onMeta) {
      if (changes.length === 0) return metaTwin(example);
      const shape = example.shape;
      for (const [dim, symbol] of changes) shape[Number(dim)] = sizes[symbol]!;
      const made = callGiven(bindOp('aten::empty.memory_format'), [shape, example.dtype, undefined, 'meta']) as Tensor;
      return example.requiresGrad ? made.requiresGrad_() : made;
    }
    let made = example.detach().clone();
    for (const [dim, symbol] of changes) {
      const size = example.size(Number(dim));
      const rows = Array.from({ length: sizes[symbol]! }, (_, i) => i % size);
      made = made.indexSelect(Number(dim), tensor(rows, { device: example.device }));
    }
    return example.requiresGrad ? made.requiresGrad_() : made;
  }

  /** How the graph is called: the arguments with placeholders for tensors; other values are fixed. */
  signature(placeholders: readonly string[]): CallSignature {
    let next = 0;
    const leaves = this.leaves.map(
      (leaf): GraphArgument =>
        leaf instanceof Tensor ? { ref: placeholders[next++]! } : (encodePlain(leaf) as GraphArgument),
    );
    const parts = treeArgument(this.spec, leaves) as GraphArgument[];
    return {
      args: parts.slice(0, this.numArgs),
      kwargs: Object.fromEntries(this.kwargs.map((key, i) => [key, parts[this.numArgs + i] as GraphArgument])),
      names: this.names,
    };
  }

  private readSizes(): Sizes {
    const sizes: Record<string, number> = {};
    const where: Record<string, string> = {};
    for (const { tensor, name, free } of this.tensors)
      for (const [dim, symbol] of Object.entries(free)) {
        const size = tensor.size(Number(dim));
        const known = sizes[symbol];
        if (known !== undefined && known !== size)
          throw new PipelineError(
            'TRACE_INPUT',
            `trace: the free dimension '${symbol}' is ${known} in ${where[symbol]} and ${size} in ${name}; give the dimensions different names, or examples of the same size`,
          );
        sizes[symbol] = size;
        where[symbol] = name;
      }
    return sizes;
  }
}

interface InputOptions {
  readonly kwargs: Readonly<Record<string, unknown>>;
  /** Undefined: the first dimension of all tensors that have the first one's size there. */
  readonly dynamicShapes: DynamicShapes | undefined;
}

function checkLeaf(leaf: unknown, name: string): void {
  if (leaf instanceof Tensor || encodePlain(leaf) !== undefined) return;
  const is = leaf === undefined ? 'undefined' : `a ${(leaf as object).constructor.name}`;
  throw new PipelineError(
    'TRACE_INPUT',
    `trace: argument ${name} is ${is}; give tensors, numbers, strings, booleans, null, and arrays and plain objects of them`,
  );
}

function freeDims(tensors: readonly Tensor[], given: DynamicShapes | undefined): readonly FreeDims[] {
  if (given === undefined) {
    const batch = tensors.find((one) => one.dim() > 0)?.size(0);
    return tensors.map((one) => (one.dim() > 0 && one.size(0) === batch ? { 0: 'batch' } : {}));
  }
  if (!Array.isArray(given) || given.length !== tensors.length)
    throw new PipelineError(
      'BAD_OPTION',
      `trace: dynamicShapes has ${Array.isArray(given) ? given.length : 'no'} entries for ${tensors.length} tensors; give one for each, such as { 0: 'batch' }, or null`,
    );
  (given as DynamicShapes).forEach((free, i) => {
    const dims = tensors[i]!.dim();
    for (const [dim, symbol] of Object.entries(free ?? {})) {
      if (!(Number(dim) >= 0 && Number(dim) < dims))
        throw new PipelineError(
          'BAD_OPTION',
          `trace: dynamicShapes[${i}] names dimension ${dim} of a tensor of ${dims}`,
        );
      if (typeof symbol !== 'string' || !/^[A-Za-z_]\w*$/.test(symbol))
        throw new PipelineError(
          'BAD_OPTION',
          `trace: dynamicShapes[${i}]: '${String(symbol)}' is not a name for a dimension`,
        );
    }
  });
  return (given as DynamicShapes).map((free) => free ?? {});
}

/** The names of the parameters of `forward`, as far as its text tells; `arg0` and so on elsewhere. */
function parameterNames(module: nn.Module, count: number): string[] {
  const text = Function.prototype.toString.call(module.forward);
  const list = /^(?:function\s*)?[\w$]*\s*\(([^()]*)\)/.exec(text)?.[1] ?? '';
  const names = list.split(',').map((part) => /^\s*([A-Za-z]\w*)\s*(?:=.*)?$/.exec(part)?.[1]);
  return Array.from({ length: count }, (_, i) => names[i] ?? `arg${i}`);
}

function identifier(path: string): string {
  return path.replace(/\W+/g, '_').replace(/_$/, '');
}

function childrenOf(spec: TreeSpec): readonly TreeSpec[] {
  return (spec as { readonly list: readonly TreeSpec[] }).list;
}

/** A tree of leaves as an argument of a node. */
export function treeArgument(spec: TreeSpec, leaves: readonly GraphArgument[]): GraphArgument {
  let next = 0;
  const build = (part: TreeSpec): GraphArgument => {
    if (part === '*') return leaves[next++] as GraphArgument;
    if ('list' in part) return part.list.map(build);
    if ('mapKeys' in part)
      throw new PipelineError('TRACE_INPUT', 'trace: a Map cannot be in a graph; use a plain object');
    const items = part.items.map(build);
    return { dict: Object.fromEntries(part.keys.map((key, i) => [key, items[i] as GraphArgument])) };
  };
  return build(spec);
}
