/** @file Builds a graph node by node; names are made unique, and `build` checks the whole. */
import { PipelineError } from '../base/errors.ts';
import type {
  AttributeNode,
  CallSignature,
  DimRange,
  Graph,
  GraphArgument,
  GraphNode,
  ModuleCall,
  NodeReference,
  ValueMeta,
} from './graph.ts';
import { unusedName } from './unused-name.ts';
import { checkGraph } from './validate.ts';

/** What a node may carry besides what it does. */
export interface NodeOptions {
  /** The wished name; a number is added where it is taken. */
  readonly name?: string | undefined;
  readonly meta?: ValueMeta | undefined;
  readonly modules?: readonly ModuleCall[] | undefined;
  /** The line of the original model that it came from. */
  readonly source?: string | undefined;
}

/** Keyword arguments of a call, and what any node may carry. */
export interface CallOptions extends NodeOptions {
  readonly kwargs?: Readonly<Record<string, GraphArgument>> | undefined;
}

/** What an attribute is. */
export interface AttributeOptions extends NodeOptions {
  /** Default: `parameter`. */
  readonly role?: AttributeNode['role'] | undefined;
  readonly persistent?: boolean | undefined;
}

/**
 * Builds a graph.
 *
 * @example const g = new GraphBuilder(); g.output(g.call('aten::relu', [g.placeholder('x')])); const graph = g.build()
 */
export class GraphBuilder {
  private readonly nodes: GraphNode[] = [];
  private readonly names = new Set<string>();
  private readonly next = new Map<string, number>();
  private readonly graphs: Record<string, Graph> = {};
  private readonly ranges: Record<string, DimRange> = {};
  private signature: CallSignature | undefined;

  /** Adds an input. */
  placeholder(name: string, options: Omit<NodeOptions, 'name'> = {}): NodeReference {
    return this.add({ kind: 'placeholder', ...this.base(name, options) });
  }

  /** Adds a read of a parameter or buffer of the owner. */
  attribute(target: string, options: AttributeOptions = {}): NodeReference {
    const { role = 'parameter', persistent } = options;
    return this.add({
      kind: 'attribute',
      ...this.base(target.replaceAll('.', '_'), options),
      target,
      role,
      ...(persistent === undefined ? {} : { persistent }),
    });
  }

  /** Adds an operator. @example builder.call('aten::add.Tensor', [a, b], { kwargs: { alpha: 2 } }) */
  call(op: string, args: readonly GraphArgument[], options: CallOptions = {}): NodeReference {
    const hint = op.replace(/^.*::/, '').replace(/\..*$/, '');
    return this.add({ kind: 'call', ...this.base(hint, options), op, args, ...keywords(options) });
  }

  /** Adds a call of a module of the owner. */
  callModule(target: string, args: readonly GraphArgument[], options: CallOptions = {}): NodeReference {
    const hint = target.replaceAll('.', '_');
    return this.add({ kind: 'module', ...this.base(hint, options), target, args, ...keywords(options) });
  }

  /** Adds an access to one element of a list. */
  element(of: NodeReference, index: number, options: NodeOptions = {}): NodeReference {
    return this.add({ kind: 'element', ...this.base('getitem', options), of, index });
  }

  /** Adds the output, which ends the graph. */
  output(value: GraphArgument, options: NodeOptions = {}): void {
    this.add({ kind: 'output', ...this.base('output', options), value });
  }

  /** Adds a finished node as it is, except that its name is made unique; returns what to refer to it by. */
  copy(node: GraphNode): NodeReference {
    return this.add({ ...node, name: this.unique(node.name) });
  }

  /** Adds a sub-graph and returns the argument that stands for it. */
  subgraph(name: string, graph: Graph): GraphArgument {
    const free = unusedName(name, { has: (each) => Object.hasOwn(this.graphs, each) });
    this.graphs[free] = graph;
    return { graph: free };
  }

  /** Sets the bounds of a symbol or expression. */
  range(expression: string, range: DimRange): void {
    this.ranges[expression] = range;
  }

  /** Sets how the graph is called, where that is not its placeholders in order. */
  callAs(signature: CallSignature): void {
    this.signature = signature;
  }

  /** A name that no node has yet: `name`, or `name_1`, `name_2` and so on. */
  unique(name: string): string {
    if (!this.names.has(name)) return name;
    for (let i = this.next.get(name) ?? 1; ; i++) {
      const free = `${name}_${i}`;
      if (this.names.has(free)) continue;
      this.next.set(name, i + 1);
      return free;
    }
  }

  /** The finished graph, checked. */
  build(): Graph {
    const graph: Graph = {
      nodes: this.nodes,
      ...(Object.keys(this.graphs).length === 0 ? {} : { graphs: this.graphs }),
      ...(Object.keys(this.ranges).length === 0 ? {} : { ranges: this.ranges }),
      ...(this.signature === undefined ? {} : { signature: this.signature }),
    };
    checkGraph(graph, 'GraphBuilder.build');
    return graph;
  }

  private base(hint: string, options: NodeOptions): Pick<GraphNode, 'name' | 'meta' | 'modules' | 'source'> {
    const { name = hint, meta, modules, source } = options;
    return {
      name: this.unique(name),
      ...(meta === undefined ? {} : { meta }),
      ...(modules === undefined ? {} : { modules }),
      ...(source === undefined ? {} : { source }),
    };
  }

  private add(node: GraphNode): NodeReference {
    if (this.nodes.at(-1)?.kind === 'output')
      throw new PipelineError(
        'GRAPH',
        `GraphBuilder: node '${node.name}' comes after the output, which ends the graph`,
      );
    this.names.add(node.name);
    this.nodes.push(node);
    return { ref: node.name };
  }
}

function keywords(options: CallOptions): { readonly kwargs?: Readonly<Record<string, GraphArgument>> } {
  const { kwargs } = options;
  return kwargs === undefined || Object.keys(kwargs).length === 0 ? {} : { kwargs };
}
