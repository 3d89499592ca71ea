/** @file One graph of a `.pt2` program, sub-graphs included, as a graph of ours. */
import { TorchError } from '@pipewright/torch';
import { bindOp } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph, GraphArgument, ModuleCall, NodeReference, ValueMeta } from '../graph/graph.ts';
import type { JsonCursor } from './json-cursor.ts';
import { shown } from './pt2-error.ts';
import { readArgument } from './read-arguments.ts';
import { readModules, readSource, ValueTable } from './read-metadata.ts';
import { readTarget } from './targets.ts';

const deepest = 32;

/** Reads the nodes of one graph into a builder. */
export class GraphReader {
  readonly builder: GraphBuilder = new GraphBuilder();
  readonly table: ValueTable;
  private readonly graph: JsonCursor;
  private readonly depth: number;
  private readonly values = new Map<string, NodeReference>();
  /** What makes a value when it is first used. */
  private readonly late = new Map<string, () => NodeReference>();
  /** The module calls of the node that is being read. */
  modules: ModuleCall[] | undefined;
  /** The line that it came from. */
  source: string | undefined;

  constructor(graph: JsonCursor, depth = 0) {
    if (depth > deepest) throw graph.wrong(`sub-graphs are nested deeper than ${deepest}`);
    this.graph = graph;
    this.depth = depth;
    this.table = new ValueTable(graph);
  }

  /** Notes that a node makes a value. */
  define(name: string, node: NodeReference, at: JsonCursor): void {
    if (this.values.has(name)) throw at.wrong(`value ${shown(name)} is made twice`);
    this.values.set(name, node);
  }

  /** Lets nodes use another node for a value, which is made right before the first that does. */
  redefine(name: string, make: () => NodeReference): void {
    this.values.delete(name);
    this.late.set(name, make);
  }

  /** The node that makes a value, where there is one yet. */
  made(name: string): NodeReference | undefined {
    return this.values.get(name);
  }

  /** Adds an input of the graph. */
  placeholder(name: string, at: JsonCursor): NodeReference {
    const meta = this.table.find(name);
    const node = this.checked(at, () => this.builder.placeholder(name, meta === undefined ? {} : { meta }));
    this.define(name, node, at);
    return node;
  }

  /** Reads one argument. */
  argument(argument: JsonCursor): GraphArgument {
    return readArgument(argument, {
      value: (name, at) => {
        const found = this.values.get(name) ?? this.late.get(name)?.();
        if (found === undefined) throw at.wrong(`value ${shown(name)} is used before it is made`);
        this.values.set(name, found);
        return found;
      },
      graph: (inner) => {
        const name =
          inner
            .get('name')
            .text()
            .replaceAll(/[^\w.]/g, '_') || 'graph';
        return this.builder.subgraph(name, readSubgraph(inner.get('graph'), this.depth + 1));
      },
    });
  }

  /** Reads all nodes; `after` is called after each. */
  nodes(after: () => void = () => undefined): void {
    for (const node of this.graph.get('nodes').list()) {
      this.modules = readModules(node.find('metadata'));
      this.source = readSource(node.find('metadata'));
      this.node(node);
      after();
    }
    this.modules = undefined;
    this.source = undefined;
  }

  private node(node: JsonCursor): void {
    const op = readTarget(node.get('target'));
    const { args, kwargs } = this.callArguments(op, node.get('inputs').list());
    const outputs = node.get('outputs').list();
    const results = outputs.map((output) => this.result(output));
    const isBare = this.isBare(op, node, results);
    const { modules, source } = this;
    const ownName = node.find('name')?.text();
    const [first] = results;
    const name = isBare ? (first as string) : (ownName ?? (typeof first === 'string' ? `${first}_call` : undefined));
    const meta = isBare ? this.table.find(first as string) : this.metaOf(results);
    const call = this.checked(node, () => this.builder.call(op, args, { name, kwargs, meta, modules, source }));
    if (isBare) this.define(first as string, call, node);
    else if (outputs.length === 1 && isList(first)) this.elements(call, first, node);
    else this.elements(call, results, node);
  }

  /** Whether a node has one result that is no list. */
  private isBare(op: string, node: JsonCursor, results: readonly Result[]): boolean {
    if (results.length !== 1 || typeof results[0] !== 'string') return false;
    if (!op.startsWith('higher_order::')) return true;
    const flag = node.find('is_hop_single_tensor_return');
    return flag === undefined || flag.bool();
  }

  private metaOf(results: readonly Result[]): ValueMeta | undefined {
    const read = (result: Result): ValueMeta => {
      if (result === null) return null;
      return isList(result) ? result.map(read) : (this.table.find(result) ?? null);
    };
    if (results.length === 0 || (results.length === 1 && results[0] === null)) return undefined;
    return results.length === 1 && isList(results[0]) ? results[0].map(read) : results.map(read);
  }

  private elements(of: NodeReference, results: readonly Result[], at: JsonCursor): void {
    const { modules } = this;
    results.forEach((result, index) => {
      if (result === null) return;
      const name = isList(result) ? undefined : result;
      const meta = name === undefined ? undefined : this.table.find(name);
      const element = this.checked(at, () => this.builder.element(of, index, { name, meta, modules }));
      if (isList(result)) this.elements(element, result, at);
      else this.define(result, element, at);
    });
  }

  /** The names of what a node gives: one, a list of them, or null for nothing. */
  private result(output: JsonCursor): Result {
    const [tag, value] = output.union();
    switch (tag) {
      case 'as_none':
        return null;
      case 'as_tensor':
        return value.get('name').text();
      case 'as_tensors':
        return value.list().map((item) => item.get('name').text());
      case 'as_optional_tensor': {
        const [kind, inner] = value.union();
        return kind === 'as_none' ? null : inner.get('name').text();
      }
      case 'as_optional_tensors':
        return value.list().map((item) => {
          const [kind, inner] = item.union();
          return kind === 'as_none' ? null : inner.get('name').text();
        });
      case 'as_sym_int':
      case 'as_sym_float':
      case 'as_sym_bool': {
        const [kind, name] = value.union();
        return kind === 'as_name' ? name.text() : null;
      }
      default:
        throw output.wrong(`a node cannot give ${shown(tag)}`);
    }
  }

  /** Arguments by the operator's schema: positional as far as they go without a hole, then by name. */
  private callArguments(
    op: string,
    inputs: readonly JsonCursor[],
  ): { args: GraphArgument[]; kwargs: Record<string, GraphArgument> } {
    const order = schemaOf(op);
    const args: GraphArgument[] = [];
    const kwargs: Record<string, GraphArgument> = {};
    for (const input of inputs) {
      const name = input.get('name').text();
      const value = this.argument(input.get('arg'));
      const isNext = order === undefined ? name === '' || op.startsWith('scalar::') : order[args.length] === name;
      const key = camelCase(name);
      if (isNext && Object.keys(kwargs).length === 0) args.push(value);
      else if (key === '' || key === '__proto__' || Object.hasOwn(kwargs, key))
        throw input.wrong(`argument ${shown(name)} is given twice, or has no name`);
      else kwargs[key] = value;
    }
    return { args, kwargs };
  }

  /** What the builder refuses is an error of the file. */
  private checked<T>(at: JsonCursor, body: () => T): T {
    try {
      return body();
    } catch (error) {
      if (error instanceof PipelineError && !error.code.startsWith('PT2_')) throw at.wrong(error.message);
      throw error;
    }
  }
}

type Result = string | null | readonly Result[];

/** The names of an operator's positional arguments, or nothing where it is not one of libtorch's. */
function schemaOf(op: string): readonly string[] | undefined {
  if (/^(scalar|higher_order|python)::/.test(op)) return undefined;
  try {
    const { args } = bindOp(op);
    const end = args.findIndex((arg) => arg.keywordOnly);
    return args.slice(0, end < 0 ? undefined : end).map((arg) => arg.name);
  } catch (error) {
    if (error instanceof TorchError && error.code === 'UNKNOWN_OP') return undefined; // named when the graph is compiled
    throw error;
  }
}

function camelCase(name: string): string {
  return name.replace(/(?<=[a-z0-9A-Z])_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

function readSubgraph(graph: JsonCursor, depth: number): Graph {
  const reader = new GraphReader(graph, depth);
  let constants = 0;
  for (const input of graph.get('inputs').list()) {
    const name = inputName(input);
    if (name === undefined) reader.builder.placeholder(`constant_input_${constants++}`);
    else reader.placeholder(name, input);
  }
  reader.nodes();
  const outputs = graph
    .get('outputs')
    .list()
    .map((output) => reader.argument(output));
  const isBare = graph.find('is_single_tensor_return')?.bool() === true;
  if (isBare && outputs.length !== 1) throw graph.wrong(`one result is expected, got ${outputs.length}`);
  reader.builder.output(isBare ? (outputs[0] as GraphArgument) : outputs);
  return reader.builder.build();
}

/** The name that an input of a graph defines; a literal defines none. */
export function inputName(input: JsonCursor): string | undefined {
  const [tag, value] = input.union();
  switch (tag) {
    case 'as_tensor':
    case 'as_custom_obj':
      return value.get('name').text();
    case 'as_sym_int':
    case 'as_sym_float':
    case 'as_sym_bool': {
      const [kind, name] = value.union();
      return kind === 'as_name' ? name.text() : undefined;
    }
    case 'as_none':
    case 'as_int':
    case 'as_float':
    case 'as_bool':
    case 'as_string':
      return undefined;
    default:
      throw input.wrong(`an input cannot be ${shown(tag)}`);
  }
}
