/**
 * @file Several runs of one model as one: what differs between them are numbers that follow from the free sizes, and
 * those become expressions, computed in the graph from the sizes of tensors at hand.
 */
import { scope, type Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { type CallNode, eachReference, type GraphArgument, type GraphNode, type ValueMeta } from '../graph/graph.ts';
import { formatArgument } from '../graph/print.ts';
import type { FlatNode } from '../graph/regions.ts';
import type { Recording } from './run.ts';
import { formatSize, type NumberKind, type SizeExpression, type Sizes, solveSize } from './sizes.ts';

/** The operator that reads a size of a tensor, and the namespace of arithmetic on sizes. */
const sizeOp = 'aten::sym_size.int';
const scalarOps: Readonly<Record<string, string>> = {
  add: 'scalar::add',
  mul: 'scalar::mul',
  floordiv: 'scalar::floordiv',
  truediv: 'scalar::truediv',
  sqrt: 'scalar::sqrt',
};

/** Runs at different sizes. */
interface Run {
  readonly sizes: Sizes;
  readonly recording: Recording;
}

/** The first run with every number that differs in the others replaced by what computes it. */
export function mergeRuns(runs: readonly Run[]): Recording {
  return new Merger(runs).merge();
}

class Merger {
  private readonly runs: readonly Run[];
  private readonly first: Recording;
  private readonly sizes: readonly Sizes[];
  private readonly out: FlatNode[] = [];
  private readonly names: Set<string>;
  /** Shapes of values as expressions, for what was merged so far. */
  private readonly shapes = new Map<string, readonly SizeExpression[]>();
  private cache = new Map<string, string>();
  private around: Pick<FlatNode, 'regions'> & Pick<GraphNode, 'modules'> = { regions: [] };
  /** What is being merged, for messages. */
  private at = '';

  constructor(runs: readonly Run[]) {
    this.runs = runs;
    this.first = runs[0]!.recording;
    this.sizes = runs.map((run) => run.sizes);
    this.names = new Set(
      [...this.first.inputs, ...this.first.attributes, ...this.first.nodes.map(({ node }) => node)].map(
        ({ name }) => name,
      ),
    );
  }

  merge(): Recording {
    const all = this.runs.map((run) => run.recording);
    this.sameStructure(all);
    const inputs = this.first.inputs.map(({ name }, i) => ({
      name,
      meta: this.meta(
        name,
        all.map((each) => each.inputs[i]?.meta ?? null),
      ),
    }));
    for (const { name, meta } of this.first.attributes)
      this.meta(
        name,
        all.map(() => meta),
      );
    this.first.nodes.forEach(({ node, regions }, i) => {
      const nodes = all.map((each) => each.nodes[i]!.node);
      this.node(node, nodes, regions);
    });
    this.at = 'what the model returns';
    this.around = { regions: [] };
    const output = this.argument(
      all.map((each) => each.output),
      [],
    );
    return { ...this.first, inputs, nodes: this.out, output };
  }

  private node(node: GraphNode, versions: readonly GraphNode[], regions: FlatNode['regions']): void {
    const meta = this.meta(
      node.name,
      versions.map((each) => each.meta ?? null),
    );
    const known = meta === null ? {} : { meta };
    this.around = { regions, ...(node.modules === undefined ? {} : { modules: node.modules }) };
    if (node.kind !== 'call') {
      this.out.push({ node: { ...node, ...known }, regions });
      return;
    }
    if (node.args.length === 0 && node.op.startsWith('pippy::')) this.cache = new Map();
    const calls = versions as readonly CallNode[];
    this.at = `${node.op} in ${node.modules?.at(-1)?.path || 'the model'}`;
    const near: string[] = [];
    eachReference(node.args, (name) => near.push(name));
    const args = node.args.map((_, i) =>
      this.argument(
        calls.map((each) => each.args[i] as GraphArgument),
        near,
      ),
    );
    const kwargs = Object.fromEntries(
      Object.keys(node.kwargs ?? {}).map((key) => [
        key,
        this.argument(
          calls.map((each) => each.kwargs?.[key] as GraphArgument),
          near,
        ),
      ]),
    );
    this.out.push({ node: { ...node, args, ...(node.kwargs === undefined ? {} : { kwargs }), ...known }, regions });
  }

  /** One argument of all runs as one. `near` are tensors at hand, whose sizes are the first to be read. */
  private argument(versions: readonly GraphArgument[], near: readonly string[]): GraphArgument {
    const [first] = versions as [GraphArgument];
    if (typeof first === 'number') {
      const values = versions.map((each) => (typeof each === 'number' ? each : Number.NaN));
      return values.every((value) => value === first) ? first : this.scalar(values, 'int', near);
    }
    if (typeof first !== 'object' || first === null) {
      if (versions.some((each) => each !== first)) throw this.differs(versions);
      return first;
    }
    if (Array.isArray(first)) {
      const lists = versions as readonly (readonly GraphArgument[])[];
      if (lists.some((each) => !Array.isArray(each) || each.length !== first.length)) throw this.differs(versions);
      return first.map((_, i) =>
        this.argument(
          lists.map((each) => each[i] as GraphArgument),
          near,
        ),
      );
    }
    if ('float' in first && typeof first.float === 'number') {
      const values = versions.map((each) => floatOf(each));
      return values.every((value) => value === first.float) ? first : this.scalar(values, 'float', near);
    }
    if ('dict' in first) {
      const dicts = versions.map((each) => (each as { readonly dict: Readonly<Record<string, GraphArgument>> }).dict);
      const keys = Object.keys(first.dict);
      return {
        dict: Object.fromEntries(
          keys.map((key) => [
            key,
            this.argument(
              dicts.map((each) => each[key] as GraphArgument),
              near,
            ),
          ]),
        ),
      };
    }
    if (versions.some((each) => JSON.stringify(each) !== JSON.stringify(first))) throw this.differs(versions);
    return first;
  }

  /** The node that computes a number which differs between the runs. */
  private scalar(values: readonly number[], kind: NumberKind, near: readonly string[]): GraphArgument {
    const found = solveSize(this.sizes, values, kind);
    if (found === null) {
      const cases = values.map((value, i) => `${String(value)} at ${formatSizes(this.sizes[i]!)}`);
      throw new PipelineError(
        'TRACE_SIZES',
        `trace: a number given to ${this.at} is ${cases.join(', ')}: no simple expression of the sizes; compute it from tensors, or fix the sizes with dynamicShapes: false`,
        { values },
      );
    }
    const whole = this.sizeAtHand(found, near);
    return { ref: whole ?? this.emit(found, near) };
  }

  /** A tensor at hand one of whose sizes is exactly the expression. */
  private sizeAtHand(expression: SizeExpression, near: readonly string[]): string | null {
    const text = formatSize(expression);
    for (const name of [...near, ...this.first.inputs.map((input) => input.name)]) {
      const dim = this.shapes.get(name)?.findIndex((each) => formatSize(each) === text) ?? -1;
      if (dim >= 0) return this.call(sizeOp, [{ ref: name }, dim], expression);
    }
    return null;
  }

  private emit(expression: SizeExpression, near: readonly string[]): string {
    if (typeof expression === 'object' && 'op' in expression) {
      const parts = expression.of.map((part): GraphArgument => {
        if (typeof part === 'number') return Number.isInteger(part) ? part : { float: part };
        return { ref: this.sizeAtHand(part, near) ?? this.emit(part, near) };
      });
      return this.call(scalarOps[expression.op]!, parts, expression);
    }
    throw new PipelineError('INTERNAL', `internal: no input has the size ${formatSize(expression)}`);
  }

  private call(op: string, args: readonly GraphArgument[], value: SizeExpression): string {
    const { regions, modules } = this.around;
    const key = `${op} ${JSON.stringify(args)} ${modules?.map(({ path }) => path).join(' ')} ${regions.map((each) => each.key).join(' ')}`;
    const known = this.cache.get(key);
    if (known !== undefined) return known;
    const base = op.replace(/^.*::/, '').replace(/\..*$/, '');
    let name = base;
    for (let i = 1; this.names.has(name); i++) name = `${base}_${i}`;
    this.names.add(name);
    this.cache.set(key, name);
    const isFloat = op.endsWith('truediv') || op.endsWith('sqrt');
    this.out.push({
      node: {
        kind: 'call',
        name,
        op,
        args,
        meta: { scalar: isFloat ? 'float' : 'int', value: formatSize(value) },
        ...(modules === undefined ? {} : { modules }),
      },
      regions,
    });
    return name;
  }

  /** What is known of a value in all runs; sizes that differ become expressions. */
  private meta(name: string, versions: readonly ValueMeta[]): ValueMeta {
    const [first] = versions as [ValueMeta];
    if (first === null) return null;
    if (Array.isArray(first)) {
      const lists = versions as readonly (readonly ValueMeta[])[];
      return (first as readonly ValueMeta[]).map((_, i) =>
        this.meta(
          `${name}[${i}]`,
          lists.map((each) => each[i] ?? null),
        ),
      );
    }
    if (!('shape' in first)) return first;
    const all = versions as readonly (typeof first)[];
    const lastLike = all.findLastIndex((each) => each?.shape.length === first.shape.length);
    const runs = this.sizes.slice(0, lastLike + 1); // at size 1, the last one, dimensions can be squeezed away
    const shape = first.shape.map((size, dim): SizeExpression => {
      const values = runs.map((_, i) => all[i]?.shape[dim] as number);
      if (values.every((value) => value === size)) return size as number;
      return solveSize(runs, values, 'int') ?? { symbol: `${name}_${dim}` };
    });
    this.shapes.set(name, shape);
    return { ...first, shape: shape.map((each) => (typeof each === 'number' ? each : formatSize(each))) };
  }

  private sameStructure(all: readonly Recording[]): void {
    all.forEach((each, run) => {
      const { nodes, attributes } = each;
      this.first.nodes.forEach(({ node, regions }, i) => {
        const other = nodes[i];
        const mine = describe(node, regions);
        const theirs = other === undefined ? 'nothing' : describe(other.node, other.regions);
        if (mine !== theirs) throw this.otherStructure(run, mine, theirs);
      });
      if (nodes.length > this.first.nodes.length)
        throw this.otherStructure(run, 'nothing', describe(nodes[this.first.nodes.length]!.node, []));
      attributes.forEach(({ target, meta, tensor }, i) => {
        const mine = this.first.attributes[i];
        const isSame = mine?.target === target && JSON.stringify(mine.meta) === JSON.stringify(meta);
        if (!isSame || !sameConstant(mine.tensor, tensor))
          throw new PipelineError(
            'TRACE_SIZES',
            `trace: the constant ${target} made in forward differs between ${formatSizes(this.sizes[0]!)} and ${formatSizes(this.sizes[run]!)}; make it with operators that take the size (arange, full, ones)`,
          );
      });
    });
  }

  private otherStructure(run: number, mine: string, theirs: string): PipelineError {
    return new PipelineError(
      'TRACE_SIZES',
      `trace: the model does ${mine} at ${formatSizes(this.sizes[0]!)}, but ${theirs} at ${formatSizes(this.sizes[run]!)}: what it computes depends on the size; fix the sizes with dynamicShapes: false`,
    );
  }

  private differs(versions: readonly GraphArgument[]): PipelineError {
    const cases = versions.map((value, i) => `${formatArgument(value)} at ${formatSizes(this.sizes[i]!)}`);
    return new PipelineError(
      'TRACE_SIZES',
      `trace: an argument of ${this.at} is ${cases.join(', ')}: what the model computes depends on the size; fix the sizes with dynamicShapes: false`,
    );
  }
}

/** Constants made in forward must be the same in every run; parameters and buffers are the same tensors. */
function sameConstant(a: Tensor, b: Tensor): boolean {
  if (a === b || a.isSame(b)) return true;
  if (a.isMeta || b.isMeta) return a.isMeta && b.isMeta;
  return scope(() => a.equal(b) || (a.isnan().equal(b.isnan()) && a.nanToNum().equal(b.nanToNum())));
}

function floatOf(value: GraphArgument): number {
  if (typeof value === 'number') return value;
  return typeof value === 'object' && value !== null && 'float' in value ? Number(value.float) : Number.NaN;
}

function describe(node: GraphNode, regions: FlatNode['regions']): string {
  const what = node.kind === 'call' ? node.op : node.kind === 'element' ? `%${node.of.ref}[${node.index}]` : node.kind;
  const path = node.modules?.at(-1)?.path ?? '';
  return `${what} (%${node.name}${path === '' ? '' : ` of ${path}`}${regions.length === 0 ? '' : `, ${regions.map((each) => each.key).join(', ')}`})`;
}

function formatSizes(sizes: Sizes): string {
  return Object.entries(sizes)
    .map(([symbol, size]) => `${symbol} ${size}`)
    .join(' and ');
}
