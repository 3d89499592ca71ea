/** @file The rule book of graphs: every violation by node and rule. It takes any JSON, so that a graph from elsewhere is safe to use after it. */
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { Graph } from './graph.ts';

/** A broken rule: where, which, and with what values. */
export interface GraphViolation {
  /** The node's name, or a part of the graph: `graph`, `signature`, `ranges`; sub-graphs as `body/add_1`. */
  readonly node: string;
  readonly rule: GraphRule;
  readonly message: string;
}

/** The rules that a graph keeps. */
export type GraphRule =
  | 'shape' // every part has the form that the types say
  | 'name' // names are unique and printable
  | 'order' // placeholders come first, the output last and once
  | 'defined' // a value is used after it was made, and only values are used
  | 'target' // operators and attributes are named as they are looked up
  | 'element' // an element lies inside its list
  | 'attribute' // one name is one attribute, with one role
  | 'subgraph' // a sub-graph exists, and does not contain itself
  | 'signature' // the call has every placeholder once
  | 'range'; // bounds are whole numbers in order

type Json = Readonly<Record<string, unknown>>;

const deepest = 64;

/** All violations of a graph, none for a sound one. @example validateGraph(graph).map((v) => `${v.node}: ${v.message}`) */
export function validateGraph(graph: unknown): GraphViolation[] {
  const found: GraphViolation[] = [];
  new Checker(found, '', new Map()).graph(graph, 0);
  return found;
}

/** Throws an error that names every violation of a graph. @example checkGraph(JSON.parse(text)) */
export function checkGraph(graph: unknown, where = 'checkGraph'): asserts graph is Graph {
  checkArgument('checkGraph', typeof where === 'string', ['where', where], 'a string');
  const found = validateGraph(graph);
  if (found.length === 0) return;
  const shown = found.slice(0, 10).map(({ node, rule, message }) => `  ${node}: ${message} [${rule}]`);
  if (found.length > shown.length) shown.push(`  and ${found.length - shown.length} more`);
  throw new PipelineError('GRAPH', `${where}: the graph is not sound\n${shown.join('\n')}`, { violations: found });
}

class Checker {
  private readonly found: GraphViolation[];
  private readonly prefix: string;
  /** Attributes of the whole graph, sub-graphs included: they have one owner. */
  private readonly attributes: Map<string, string>;
  private at = 'graph';
  private graphs: Json = {};
  /** Values made so far: how many results each has, or -1 where that is not known. */
  private readonly defined = new Map<string, number>();

  constructor(found: GraphViolation[], prefix: string, attributes: Map<string, string>) {
    this.found = found;
    this.prefix = prefix;
    this.attributes = attributes;
  }

  graph(graph: unknown, depth: number): void {
    if (!isRecord(graph) || !Array.isArray(graph['nodes'])) return this.say('shape', 'a graph is { nodes: [...] }');
    if (depth > deepest) return this.say('subgraph', `sub-graphs are nested deeper than ${deepest}`);
    this.fields(graph, ['nodes', 'graphs', 'ranges', 'signature', 'traced']);
    if (graph['graphs'] !== undefined) {
      if (isRecord(graph['graphs'])) this.graphs = graph['graphs'];
      else this.say('shape', 'graphs is an object of sub-graphs by name');
    }
    const nodes = graph['nodes'] as readonly unknown[];
    nodes.forEach((node, i) => this.node(node, i, nodes));
    this.at = 'graph';
    if (nodes.length === 0 || (nodes.at(-1) as Json | null)?.['kind'] !== 'output')
      this.say('order', 'the last node is the output');
    if (graph['ranges'] !== undefined) this.ranges(graph['ranges']);
    if (graph['signature'] !== undefined) this.signature(graph['signature'], nodes);
    if (graph['traced'] !== undefined) this.traced(graph['traced']);
    for (const [name, inner] of Object.entries(this.graphs))
      new Checker(this.found, `${this.prefix}${name}/`, this.attributes).graph(inner, depth + 1);
  }

  private say(rule: GraphRule, message: string): void {
    this.found.push({ node: this.prefix + this.at, rule, message });
  }

  private fields(value: Json, known: readonly string[]): void {
    for (const key of Object.keys(value))
      if (!known.includes(key)) this.say('shape', `unknown field '${key}'; there are ${known.join(', ')}`);
  }

  private node(node: unknown, index: number, nodes: readonly unknown[]): void {
    this.at = `node ${index}`;
    if (!isRecord(node)) return this.say('shape', 'a node is an object with kind and name');
    const { kind, name } = node;
    if (typeof name !== 'string') return this.say('name', 'a node has a name');
    if (!isName(name))
      return this.say('name', `${JSON.stringify(name)} is not a name: no blanks, brackets, quotes, commas, %`);
    this.at = name;
    const known = typeof kind === 'string' && Object.hasOwn(fieldsOf, kind) ? fieldsOf[kind] : undefined;
    if (known === undefined)
      return this.say('shape', `unknown kind ${JSON.stringify(kind)}; there are ${Object.keys(fieldsOf).join(', ')}`);
    this.fields(node, ['kind', 'name', 'meta', 'modules', 'source', ...known]);
    if (this.defined.has(name)) this.say('name', 'another node has this name');
    if (node['meta'] !== undefined) this.meta(node['meta'], 0);
    if (node['modules'] !== undefined) this.modules(node['modules']);
    if (node['source'] !== undefined && typeof node['source'] !== 'string') this.say('shape', 'source is a string');
    this.body(node, index, nodes);
    if (kind !== 'output') this.defined.set(name, Array.isArray(node['meta']) ? node['meta'].length : -1);
  }

  private body(node: Json, index: number, nodes: readonly unknown[]): void {
    switch (node['kind']) {
      case 'placeholder':
        if (index > 0 && (nodes[index - 1] as Json | null)?.['kind'] !== 'placeholder')
          this.say('order', 'placeholders come before all other nodes');
        break;
      case 'attribute':
        this.attribute(node);
        break;
      case 'call':
        if (typeof node['op'] !== 'string' || !/^\w+::[\w.]+$/.test(node['op']))
          this.say('target', `an operator is written 'aten::add.Tensor', got ${JSON.stringify(node['op'])}`);
        if (node['draw'] !== undefined && (!Number.isSafeInteger(node['draw']) || (node['draw'] as number) < 0))
          this.say('shape', `the number of a draw is a whole number, got ${JSON.stringify(node['draw'])}`);
        this.callArguments(node);
        break;
      case 'module':
        if (!isPath(node['target']))
          this.say('target', `${JSON.stringify(node['target'])} is not the path of a module`);
        this.callArguments(node);
        break;
      case 'element':
        this.element(node);
        break;
      case 'output':
        if (index !== nodes.length - 1) this.say('order', 'the output is the last node');
        if (node['value'] === undefined) this.say('shape', 'an output has a value');
        else this.argument(node['value'], 0);
        break;
    }
  }

  private attribute(node: Json): void {
    const { target, role, persistent } = node;
    if (!isPath(target))
      return this.say('target', `${JSON.stringify(target)} is not the path of a parameter or buffer`);
    if (role !== 'parameter' && role !== 'buffer')
      return this.say('attribute', `role is 'parameter' or 'buffer', got ${JSON.stringify(role)}`);
    if (persistent !== undefined && (typeof persistent !== 'boolean' || role === 'parameter'))
      this.say('attribute', 'persistent is true or false, and for buffers only');
    const text = role === 'buffer' && persistent === false ? 'buffer that is not persistent' : role;
    const before = this.attributes.get(target);
    if (before !== undefined && before !== text)
      this.say('attribute', `'${target}' is a ${before} elsewhere, a ${text} here`);
    this.attributes.set(target, text);
  }

  private element(node: Json): void {
    const { of, index } = node;
    if (!isRecord(of) || typeof of['ref'] !== 'string') return this.say('shape', 'an element is of a reference');
    this.argument(of, 0);
    if (!Number.isSafeInteger(index) || (index as number) < 0)
      return this.say('element', `an index is a whole number from 0, got ${JSON.stringify(index)}`);
    const count = this.defined.get(of['ref']) ?? -1;
    if (count >= 0 && (index as number) >= count)
      this.say('element', `element ${String(index)} of '${of['ref']}', which has ${count}`);
  }

  private callArguments(node: Json): void {
    if (Array.isArray(node['args'])) this.argument(node['args'], 0);
    else this.say('shape', 'args is a list');
    const { kwargs } = node;
    if (kwargs === undefined) return;
    if (!isRecord(kwargs)) return this.say('shape', 'kwargs is an object');
    this.entries(kwargs, 0);
  }

  private entries(values: Json, depth: number): void {
    for (const [key, value] of Object.entries(values)) {
      if (key === '__proto__') this.say('name', "'__proto__' cannot be a key");
      this.argument(value, depth);
    }
  }

  private argument(value: unknown, depth: number): void {
    if (depth > deepest) return this.say('shape', `arguments are nested deeper than ${deepest}`);
    if (value === null || typeof value === 'boolean' || typeof value === 'string') return;
    if (typeof value === 'number') {
      if (!Number.isSafeInteger(value))
        this.say('shape', `${value} is not a whole number; write { float: ${value} } or { int: "..." }`);
      return;
    }
    if (Array.isArray(value)) {
      for (const item of value as unknown[]) this.argument(item, depth + 1);
      return;
    }
    if (!isRecord(value)) return this.say('shape', `${typeof value} is not an argument`);
    const keys = Object.keys(value);
    if (keys.length !== 1) return this.say('shape', `an argument has one key, got ${JSON.stringify(keys)}`);
    this.tagged(keys[0]!, value[keys[0]!], depth);
  }

  private tagged(tag: string, value: unknown, depth: number): void {
    switch (tag) {
      case 'ref':
        if (typeof value !== 'string' || !this.defined.has(value))
          this.say('defined', `uses '${String(value)}', which no earlier node makes`);
        break;
      case 'graph':
        if (typeof value !== 'string' || !Object.hasOwn(this.graphs, value))
          this.say('subgraph', `there is no sub-graph '${String(value)}'`);
        break;
      case 'dict':
        if (isRecord(value)) this.entries(value, depth + 1);
        else this.say('shape', 'dict is an object');
        break;
      case 'float':
        if (!(Number.isFinite(value) || ['inf', '-inf', 'nan'].includes(value as string)))
          this.say('shape', `float is a number, 'inf', '-inf' or 'nan', got ${JSON.stringify(value)}`);
        break;
      case 'int':
        if (typeof value !== 'string' || !/^-?\d{1,19}$/.test(value))
          this.say('shape', `int is the digits of an integer of 64 bits, got ${JSON.stringify(value)}`);
        break;
      case 'complex':
        if (!Array.isArray(value) || value.length !== 2 || !value.every((part) => Number.isFinite(part)))
          this.say('shape', 'complex is two numbers');
        break;
      case 'dtype':
      case 'device':
      case 'layout':
      case 'memoryFormat':
        if (typeof value !== 'string') this.say('shape', `${tag} is a string`);
        break;
      default:
        this.say('shape', `unknown argument { ${tag} }`);
    }
  }

  private meta(meta: unknown, depth: number): void {
    if (meta === null) return;
    if (depth > deepest) return this.say('shape', `metadata is nested deeper than ${deepest}`);
    if (Array.isArray(meta)) {
      for (const item of meta as unknown[]) this.meta(item, depth + 1);
      return;
    }
    if (!isRecord(meta)) return this.say('shape', 'meta is an object, a list or null');
    if ('scalar' in meta) {
      if (!['int', 'float', 'bool'].includes(meta['scalar'] as string))
        this.say('shape', "scalar is 'int', 'float' or 'bool'");
      if (meta['value'] !== undefined && !isDim(meta['value']))
        this.say('shape', 'the value of a scalar is a number or an expression');
      return this.fields(meta, ['scalar', 'value']);
    }
    this.fields(meta, ['dtype', 'shape', 'stride', 'device', 'requiresGrad']);
    const { dtype, shape, stride, device, requiresGrad } = meta;
    if (typeof dtype !== 'string') this.say('shape', 'the dtype of a tensor is a string');
    if (!isDims(shape)) return this.say('shape', 'the shape of a tensor is a list of sizes and expressions');
    if (stride !== undefined && (!isDims(stride) || stride.length !== shape.length))
      this.say('shape', 'a stride has one entry per dimension');
    if (device !== undefined && typeof device !== 'string') this.say('shape', 'a device is a string');
    if (requiresGrad !== undefined && typeof requiresGrad !== 'boolean')
      this.say('shape', 'requiresGrad is true or false');
  }

  private modules(modules: unknown): void {
    const isCall = (item: unknown): boolean =>
      isRecord(item) &&
      typeof item['path'] === 'string' &&
      typeof item['type'] === 'string' &&
      (item['call'] === undefined || Number.isSafeInteger(item['call']));
    if (!Array.isArray(modules) || !modules.every(isCall)) this.say('shape', 'modules is a list of { path, type }');
  }

  private ranges(ranges: unknown): void {
    this.at = 'ranges';
    if (!isRecord(ranges)) return this.say('shape', 'ranges is an object of { min, max } by symbol');
    for (const [key, range] of Object.entries(ranges)) {
      const { min, max, strict } = isRecord(range) ? range : { min: undefined, max: undefined };
      if (key === '__proto__' || !isBound(min) || !isBound(max))
        this.say('range', `the bounds of '${key}' are whole numbers or null`);
      else if (min !== null && max !== null && min > max)
        this.say('range', `'${key}' lies between ${min} and ${max}: no such number`);
      else if (strict !== undefined && strict !== true) this.say('range', `strict of '${key}' is true or left out`);
    }
  }

  private traced(traced: unknown): void {
    this.at = 'graph';
    const reason = isRecord(traced) ? traced['fixedBecause'] : undefined;
    if (!isRecord(traced) || (reason !== null && typeof reason !== 'string'))
      return this.say('shape', 'traced is { fixedBecause: a text or null }');
    this.fields(traced, ['fixedBecause']);
  }

  private signature(signature: unknown, nodes: readonly unknown[]): void {
    this.at = 'signature';
    if (!isRecord(signature) || !Array.isArray(signature['args']) || !isRecord(signature['kwargs']))
      return this.say('shape', 'a signature is { args: [...], kwargs: {...} }');
    this.fields(signature, ['args', 'kwargs', 'names']);
    const { names } = signature;
    if (names !== undefined && !(Array.isArray(names) && names.every((name) => typeof name === 'string')))
      this.say('shape', 'names is a list of strings');
    this.argument(signature['args'], 0);
    this.entries(signature['kwargs'], 0);
    const inputs = new Set(
      nodes
        .filter((node): node is Json => isRecord(node) && node['kind'] === 'placeholder')
        .map((node) => node['name']),
    );
    const used = new Set<unknown>();
    const walk = (value: unknown, depth: number): void => {
      if (typeof value !== 'object' || value === null || depth > deepest) return;
      if (isRecord(value) && 'ref' in value) {
        const name = value['ref'];
        if (!inputs.has(name)) this.say('signature', `'${String(name)}' is not a placeholder`);
        if (used.has(name)) this.say('signature', `placeholder '${String(name)}' stands twice`);
        used.add(name);
      } else for (const item of Object.values(value)) walk(item, depth + 1);
    };
    walk(signature['args'], 0);
    walk(signature['kwargs'], 0);
    for (const name of inputs)
      if (!used.has(name)) this.say('signature', `placeholder '${String(name)}' does not occur`);
  }
}

const fieldsOf: Readonly<Record<string, readonly string[]>> = {
  placeholder: [],
  attribute: ['target', 'role', 'persistent'],
  call: ['op', 'args', 'kwargs', 'draw'],
  module: ['target', 'args', 'kwargs'],
  element: ['of', 'index'],
  output: ['value'],
};

function isRecord(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isName(name: string): boolean {
  return name.length <= 1000 && name !== '__proto__' && /^[^\s%()[\]{},'"]+$/u.test(name);
}

function isPath(path: unknown): path is string {
  return typeof path === 'string' && path.length <= 2000 && path.split('.').every(isName);
}

function isDim(value: unknown): boolean {
  return typeof value === 'string' ? value !== '' : Number.isFinite(value);
}

function isDims(value: unknown): value is unknown[] {
  return (
    Array.isArray(value) && value.every((dim) => (typeof dim === 'number' ? Number.isSafeInteger(dim) : isDim(dim)))
  );
}

function isBound(value: unknown): value is number | null {
  return value === null || Number.isSafeInteger(value);
}
