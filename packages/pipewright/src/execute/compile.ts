/**
 * @file Compiles a graph into a program: every operator is looked up and its fixed arguments encoded once, every value
 * gets a register, and its last use is found. The error for a graph that cannot be run names all the nodes that cannot.
 */
import { float, nn, type Tensor, TorchError } from '@pipewright/torch';
import {
  itemOfHandle,
  type Operand,
  type PreparedCall,
  prepareCall,
  type RegisterKind,
  type Registers,
  sizeOfHandle,
} from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { callCustomFunction, isCustomFunction } from '../graph/custom-functions.ts';
import type { CallNode, ElementNode, Graph, GraphArgument, GraphNode, ModuleCallNode } from '../graph/graph.ts';
import {
  floatNumber,
  inputsOf,
  isReference,
  originOf,
  outputOf,
  pipeSplitOp,
  trainingOp,
  usersOf,
} from '../graph/graph.ts';
import { DrawCount, drawingRun } from './draws.ts';
import { type HigherOrderValue, higherOrderNames, higherOrderOp, type RawResults } from './higher-order.ts';
import { inPlaceOperator } from './in-place.ts';
import {
  ATTRIBUTES,
  freeValue,
  type OutputPlan,
  Program,
  type ProgramParts,
  RECORDS_GRADIENTS,
  type Step,
  shareValue,
} from './program.ts';
import { fixedKind, kindOf, scalarMetaKind, typeKind } from './register-kind.ts';
import { storeParts, storeResults, type Target } from './results.ts';
import { runScalarOp, scalarOp, scalarOpNames } from './scalar-ops.ts';
import { callOnTensors, type RawTree } from './tensor-call.ts';

/** The surroundings that a graph runs in. */
export interface CompileContext {
  /** The position of an attribute in the list that a run gets. */
  readonly attribute: (target: string) => number;
  /** The module that a node calls. */
  readonly module: (target: string) => nn.Module;
  /** Where an operator that names a device shall run instead. */
  readonly device: (device: string) => string;
  /** Whether the module that owns the graph is in training, at the moment of the call. */
  readonly training: () => boolean;
}

/** Checks that hold for the example only, and marks that do nothing. */
const skipped = new Set([pipeSplitOp, 'aten::_assert_tensor_metadata']);

/** The way out where a graph calls what only Python has. */
const withoutIt =
  'save program.run_decompositions(), which replaces what is made of operators of PyTorch, or export the model without it';

interface GivenOperands {
  readonly args: readonly Operand[];
  readonly kwargs: Readonly<Record<string, Operand>>;
}

/** Compiles a graph. @example compileGraph(graph, context).run([x], parameters) */
export function compileGraph(graph: Graph, context: CompileContext): Program {
  const problems: string[] = [];
  const program = new Compiler(graph, context, problems).compile();
  if (problems.length > 0) {
    program.dispose();
    const shown = problems.slice(0, 20).map((text) => `  ${text}`);
    if (problems.length > shown.length) shown.push(`  and ${problems.length - shown.length} more`);
    throw new PipelineError('GRAPH_COMPILE', `the graph cannot be run:\n${shown.join('\n')}`, { problems });
  }
  return program;
}

class Compiler {
  private readonly graph: Graph;
  private readonly context: CompileContext;
  private readonly problems: string[];
  private readonly template: unknown[] = [null, true];
  private readonly owners: Tensor[] = [];
  private readonly constants = new Map<unknown, number>();
  /** The register and kind of every value. */
  private readonly places = new Map<string, { register: number; kind: RegisterKind }>();
  private readonly kinds = new Map<number, RegisterKind>();
  private readonly inputs: ProgramParts['inputs'][number][] = [];
  private readonly attributes: ProgramParts['attributes'][number][] = [];
  private readonly steps: Step[] = [];
  private readonly from = new Map<number, number>();
  private readonly until = new Map<number, number>();
  private readonly elements = new Map<string, ElementNode[]>();
  private readonly usedWhole = new Set<string>();
  private readonly nodes: ReadonlyMap<string, GraphNode>;
  private readonly users: ReadonlyMap<string, readonly string[]>;
  private overwrites = false;
  private readonly programs = new Map<string, Program>();
  private readonly draws: DrawCount;

  constructor(graph: Graph, context: CompileContext, problems: string[], draws = new DrawCount()) {
    this.graph = graph;
    this.draws = draws;
    this.context = context;
    this.problems = problems;
    this.nodes = new Map(graph.nodes.map((node) => [node.name, node]));
    this.users = usersOf(graph);
  }

  compile(): Program {
    for (const node of this.graph.nodes) {
      if (node.kind === 'element') this.elements.set(node.of.ref, [...(this.elements.get(node.of.ref) ?? []), node]);
      else for (const name of inputsOf(node)) this.usedWhole.add(name);
    }
    for (const node of this.graph.nodes) this.node(node);
    const output = this.outputPlan(outputOf(this.graph).value);
    if (this.problems.length === 0) this.findFrees(); // else nothing will run
    const owned = [...this.from].map(([register, from]) => ({
      register,
      from,
      until: this.until.get(register) ?? from,
    }));
    const { template, owners, inputs, attributes, steps, kinds } = this;
    const facts = { subPrograms: [...this.programs.values()], overwrites: this.overwrites };
    return new Program({ template, owners, inputs, attributes, steps, output, owned, ...facts }, kinds);
  }

  // --- registers -----------------------------------------------------------------------------------------------------

  private readonly keep = (value: unknown, owner?: Tensor): number => {
    const isPlain = owner === undefined && (typeof value !== 'object' || value === null);
    const known = isPlain ? this.constants.get(value) : undefined;
    if (known !== undefined && Object.is(this.template[known], value)) return known; // 0 and -0 are one key of a map
    const register = this.template.push(value) - 1;
    if (isPlain) this.constants.set(value, register);
    if (owner !== undefined) this.owners.push(owner);
    return register;
  };

  private newRegister(kind: RegisterKind): number {
    const register = this.template.push(null) - 1;
    this.kinds.set(register, kind);
    return register;
  }

  private place(name: string, kind: RegisterKind): { register: number; kind: RegisterKind } {
    const made = { register: this.newRegister(kind), kind };
    this.places.set(name, made);
    return made;
  }

  private use(name: string): { register: number; kind: RegisterKind } {
    const found = this.places.get(name);
    if (found === undefined) throw new PipelineError('GRAPH', `'${name}' has no value`);
    if (this.kinds.has(found.register)) this.until.set(found.register, this.steps.length);
    return found;
  }

  private step(node: GraphNode, run: Step['run'], target: Target, out = -1): void {
    const define = (part: Target): void => {
      if (part === null || 'dropped' in part) return;
      if ('register' in part) this.from.set(part.register, this.steps.length);
      else part.forEach(define);
    };
    define(target);
    this.steps.push({ node, run, out, frees: [] });
  }

  /** Every register is freed after the step that uses it last; an unused one after the step that fills it. */
  private findFrees(): void {
    const frees = new Map<number, number[]>();
    for (const [register, from] of this.from) {
      const kind = this.kinds.get(register);
      const until = this.until.get(register) ?? from;
      if ((kind !== 'tensor' && kind !== 'tensors') || until === Number.POSITIVE_INFINITY) continue;
      frees.set(until, [...(frees.get(until) ?? []), register]);
    }
    for (const [at, registers] of frees) this.steps[at]!.frees = registers;
  }

  // --- nodes -----------------------------------------------------------------------------------------------------------

  private node(node: GraphNode): void {
    try {
      switch (node.kind) {
        case 'placeholder': {
          const place = this.place(node.name, kindOf(node.meta) ?? 'tensor');
          this.inputs.push(place);
          break;
        }
        case 'attribute': {
          const place = this.place(node.name, 'tensor');
          this.attributes.push({ ...place, index: this.context.attribute(node.target) });
          break;
        }
        case 'call':
          this.call(node);
          break;
        case 'module':
          this.moduleCall(node);
          break;
        case 'element':
          this.element(node);
          break;
        case 'output':
          break;
      }
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      const origin = originOf(node);
      this.problems.push(`node '${node.name}'${origin === '' ? '' : ` (${origin})`}: ${error.message}`);
      this.place(node.name, kindOf(node.meta) ?? 'tensor'); // so that its users say nothing
    }
  }

  private call(node: CallNode): void {
    if (skipped.has(node.op)) return;
    if (node.op.startsWith('scalar::')) this.scalarCall(node);
    else if (node.op.startsWith('higher_order::')) this.higherOrderCall(node);
    else if (node.op === trainingOp) this.store(node, this.target(node, 'bool'), () => this.context.training());
    else if (isCustomFunction(node.op)) this.functionCall(node);
    else if (node.op.startsWith('python::'))
      throw new PipelineError(
        'UNKNOWN_OP',
        `${node.op.slice(8)} is a Python function, which cannot be run here; ${withoutIt}`,
      );
    else if (node.op === 'aten::sym_size.int') this.sizeCall(node);
    else this.operatorCall(node);
  }

  private operatorCall(node: CallNode): void {
    const kwargs = Object.entries(node.kwargs ?? {}).map(([key, value]) => [key, this.operand(value)] as const);
    const given = { args: node.args.map((value) => this.operand(value)), kwargs: Object.fromEntries(kwargs) };
    const { run: call, returns, inPlace, random } = this.prepare(node.op, given);
    const run = random ? drawingRun(node, this.draws, call) : call;
    const self = node.args[0] ?? node.kwargs?.['self'];
    if (inPlace && isReference(self)) {
      this.places.set(node.name, this.use(self.ref));
      this.step(node, run, null);
      return;
    }
    if (returns.length === 0) {
      this.step(node, run, null);
      return;
    }
    const isOne = returns.length === 1;
    const metas = isList(node.meta) ? node.meta : [];
    const kinds = returns.map((type, i) => typeKind(type, isOne ? node.meta : metas[i]));
    const target = this.target(node, isOne ? kinds[0]! : kinds);
    this.store(node, target, this.overwriting(node, given, run) ?? run);
  }

  /** The prepared call of an operator of libtorch; others were registered in Python. */
  private prepare(op: string, given: GivenOperands): PreparedCall {
    try {
      return prepareCall(op, given, this.keep);
    } catch (error) {
      if (op.startsWith('aten::') || !(error instanceof TorchError) || error.code !== 'UNKNOWN_OP') throw error;
      throw new PipelineError(
        'UNKNOWN_OP',
        `'${op}' is no operator of libtorch: a custom one, registered in Python, which cannot be run here; ${withoutIt}`,
      );
    }
  }

  /** The run that computes in place unless gradients are recorded, where the node may do so. */
  private overwriting(node: CallNode, given: GivenOperands, run: PreparedCall['run']): Step['run'] | undefined {
    const op = inPlaceOperator(node, this.nodes, this.users);
    const [self] = given.args;
    if (op === undefined || self === undefined || !('register' in self)) return undefined;
    const { run: runInPlace } = prepareCall(op, given, this.keep);
    const { register } = self;
    this.overwrites = true;
    return (r) => {
      if (r[RECORDS_GRADIENTS] === true) return run(r);
      runInPlace(r);
      const handle = r[register];
      r[register] = 0; // it lives on as the result
      return handle;
    };
  }

  private sizeCall(node: CallNode): void {
    const [tensor, dim] = node.args.map((value) => this.operand(value));
    if (tensor === undefined || !('register' in tensor) || dim === undefined || !('fixed' in dim))
      return this.operatorCall(node);
    const { register } = tensor;
    const at = dim.fixed as number;
    this.store(node, this.target(node, 'int'), (r) => sizeOfHandle(r[register] as number, at));
  }

  private scalarCall(node: CallNode): void {
    const op = scalarOp(node.op);
    if (op === undefined)
      throw new PipelineError('UNKNOWN_OP', `unknown operator ${node.op}; there are ${scalarOpNames.join(', ')}`);
    const operands = [...node.args, ...Object.values(node.kwargs ?? {})].map((value) => this.operand(value));
    if (operands.length !== op.arity)
      throw new PipelineError('GRAPH', `${node.op} takes ${op.arity} numbers, got ${operands.length}`);
    const readers = operands.map((operand) => scalarReader(node.op, operand));
    const kinds = operands.map((operand) => ('register' in operand ? operand.kind : fixedKind(operand)));
    const kind = scalarMetaKind(node.meta) ?? op.kind(kinds);
    this.store(node, this.target(node, kind), (r) =>
      runScalarOp(
        node.op,
        op,
        kind,
        readers.map((read) => read(r)),
      ),
    );
  }

  private higherOrderCall(node: CallNode): void {
    const op = higherOrderOp(node.op);
    if (op === undefined)
      throw new PipelineError(
        'UNKNOWN_OP',
        `operator ${node.op} is not known; there are ${higherOrderNames.join(', ')}`,
      );
    const args = node.args.map((value) => this.higherOrderArgument(value));
    const { device } = this.context;
    this.storeResults(node, (r) =>
      op({ args: args.map((read) => read(r)), attributes: r[ATTRIBUTES] as number[], device }),
    );
  }

  private higherOrderArgument(value: GraphArgument): (r: Registers) => HigherOrderValue {
    if (typeof value === 'object' && value !== null) {
      if (isList(value)) {
        const items = value.map((item) => this.higherOrderArgument(item));
        return (r) => ({ list: items.map((read) => read(r)) });
      }
      if ('graph' in value) {
        const program = this.subProgram(value.graph);
        return () => ({ program });
      }
      if ('ref' in value) {
        const { register, kind } = this.use(value.ref);
        return (r) => ({ value: r[register], kind });
      }
      if ('dict' in value) return () => ({ list: [] });
    }
    const fixed = this.fixed(value);
    return () => ({ value: fixed, kind: 'other' });
  }

  private subProgram(name: string): Program {
    let program = this.programs.get(name);
    if (program === undefined) {
      const before = this.problems.length;
      program = new Compiler(this.graph.graphs![name]!, this.context, this.problems, this.draws).compile();
      for (let i = before; i < this.problems.length; i++) this.problems[i] = `in ${name}, ${this.problems[i]}`;
      this.programs.set(name, program);
    }
    return program;
  }

  private functionCall(node: CallNode): void {
    const read = this.treeReader(node.args);
    this.storeResults(node, (r) => callOnTensors(read(r), (given) => callCustomFunction(node.op, given)));
  }

  private moduleCall(node: ModuleCallNode): void {
    const module = this.context.module(node.target);
    const named = node.kwargs ?? {};
    const read = this.treeReader(Object.keys(named).length === 0 ? node.args : [...node.args, { dict: named }]);
    const forward = module.forward as (...args: unknown[]) => unknown;
    this.storeResults(node, (r) => callOnTensors(read(r), (given) => forward.apply(module, given)));
  }

  /** A step whose results come with their kinds: several if the node has elements or a list as metadata. */
  private storeResults(node: GraphNode, run: (r: Registers) => RawResults): void {
    const isSeveral = Array.isArray(node.meta) || this.elements.has(node.name);
    const isNothing = !isSeveral && !this.usedWhole.has(node.name);
    const target = isNothing ? null : this.target(node, isSeveral ? 'tensors' : (kindOf(node.meta) ?? 'tensor'));
    this.step(
      node,
      (r) => {
        const results = run(r);
        if (isList(target)) return storeResults(node, results, target, r);
        if (isNothing) return results.values.forEach((value, i) => freeValue(value, results.kinds[i] ?? 'other'));
        const values = isSeveral ? { values: [results.values], kinds: ['tensors' as const] } : results;
        return storeResults(node, values, [target], r);
      },
      target,
    );
  }

  private element(node: ElementNode): void {
    if (this.places.has(node.name)) return; // the step that made the list has put it there
    const list = this.use(node.of.ref);
    const kind = kindOf(node.meta) ?? 'tensor';
    const { index } = node;
    const { register } = list;
    this.store(node, this.target(node, kind), (r) => {
      const items = r[register] as readonly unknown[];
      if (index >= items.length)
        throw new PipelineError('GRAPH_RUN', `element ${index} of '${node.of.ref}', which has ${items.length}`);
      return shareValue(items[index], kind);
    });
  }

  /**
   * Where the results of a node go: where only elements of a list are used, straight to those. `kinds` are those of the
   * results where they differ.
   */
  private target(node: GraphNode, kinds: RegisterKind | readonly RegisterKind[]): Target {
    const elements = this.elements.get(node.name);
    if (typeof kinds === 'string' && kinds !== 'tensors') return this.place(node.name, kinds);
    if (this.usedWhole.has(node.name) || elements === undefined) return this.place(node.name, 'tensors');
    const metas = isList(node.meta) ? node.meta : [];
    const parts: Target[] = typeof kinds === 'string' ? [] : kinds.map((kind) => ({ dropped: kind }));
    for (const element of elements) {
      const { index } = element;
      while (parts.length <= index) parts.push(null);
      const before = parts[index] ?? null;
      if (before !== null && 'register' in before) {
        this.places.set(element.name, before);
        continue;
      }
      const kind = typeof kinds === 'string' ? undefined : kinds[index];
      const known = kind ?? kindOf(element.meta ?? metas[index]);
      parts[index] = this.target(element, known ?? (this.elements.has(element.name) ? 'tensors' : 'tensor'));
    }
    return parts;
  }

  private store(node: GraphNode, target: Target, run: (r: Registers) => unknown): void {
    if (target !== null && 'register' in target) this.step(node, run, target, target.register);
    else this.step(node, (r) => storeParts(node, run(r), target, r), target);
  }

  // --- arguments -------------------------------------------------------------------------------------------------------

  private operand(value: GraphArgument): Operand {
    if (isList(value)) return { list: value.map((item) => this.operand(item)) };
    if (typeof value === 'object' && value !== null) {
      if ('ref' in value) return { ...this.use(value.ref) };
      if ('graph' in value || 'dict' in value)
        throw new PipelineError(
          'GRAPH',
          `an operator cannot take ${'graph' in value ? 'a sub-graph' : 'a dictionary'}`,
        );
    }
    return { fixed: this.fixed(value) };
  }

  private fixed(value: GraphArgument): unknown {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    if ('float' in value) return float(floatNumber(value.float));
    if ('int' in value) return BigInt(value.int);
    if ('complex' in value) return { re: value.complex[0], im: value.complex[1] };
    if ('device' in value) return this.context.device(value.device);
    return Object.values(value)[0];
  }

  /** Reads arguments as trees of raw values, for functions that take tensors. */
  private treeReader(value: GraphArgument): (r: Registers) => RawTree {
    if (typeof value === 'object' && value !== null) {
      if (isList(value)) {
        const items = value.map((item) => this.treeReader(item));
        return (r) => ({ list: items.map((read) => read(r)) });
      }
      if ('ref' in value) {
        const { register, kind } = this.use(value.ref);
        return (r) => ({ value: r[register], kind });
      }
      if ('dict' in value) {
        const items = Object.entries(value.dict).map(([key, item]) => [key, this.treeReader(item)] as const);
        return (r) => ({ dict: items.map(([key, read]) => [key, read(r)]) });
      }
      if ('float' in value) {
        const number = floatNumber(value.float);
        return () => ({ value: number, kind: 'other' });
      }
    }
    const fixed = this.fixed(value);
    return () => ({ value: fixed, kind: 'other' });
  }

  private outputPlan(value: GraphArgument): OutputPlan {
    if (isList(value)) return { list: value.map((item) => this.outputPlan(item)) };
    if (typeof value === 'object' && value !== null) {
      if ('ref' in value) {
        const found = this.places.get(value.ref);
        if (found === undefined) {
          this.problems.push(`output: node '${value.ref}' has no value`);
          return { value: null };
        }
        this.until.set(found.register, Number.POSITIVE_INFINITY);
        return { register: found.register, kind: found.kind };
      }
      if ('dict' in value)
        return { dict: Object.entries(value.dict).map(([key, item]) => [key, this.outputPlan(item)]) };
      if ('float' in value) return { value: floatNumber(value.float) };
    }
    return { value: this.fixed(value) };
  }
}

function scalarReader(op: string, operand: Operand): (r: Registers) => unknown {
  if ('list' in operand) throw new PipelineError('GRAPH', `${op} takes numbers, not lists`);
  if ('fixed' in operand) {
    const { fixed } = operand;
    const value = typeof fixed === 'object' && fixed !== null && 'float' in fixed ? fixed.float : fixed;
    if (typeof value !== 'number' && typeof value !== 'boolean' && typeof value !== 'bigint')
      throw new PipelineError('GRAPH', `${op} takes numbers, got ${JSON.stringify(value)}`);
    return () => value;
  }
  const { register, kind } = operand;
  if (kind === 'tensors') throw new PipelineError('GRAPH', `${op} takes numbers, not lists of tensors`);
  return kind === 'tensor' ? (r) => itemOfHandle(r[register] as number) : (r) => r[register];
}
