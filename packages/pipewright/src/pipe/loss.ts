/**
 * @file Models that contain their loss: finding it among what the root graph returns, and adding the backward of every
 * stage to the root graph.
 */
import { nn, type Tensor } from '@pipewright/torch';
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import {
  type CallNode,
  type ElementNode,
  type Graph,
  type GraphArgument,
  type GraphNode,
  inputsOf,
  isReference,
  type ModuleCallNode,
  needNodes,
  type OutputNode,
  outputOf,
} from '../graph/graph.ts';
import { unusedName } from '../graph/unused-name.ts';
import { checkGraph } from '../graph/validate.ts';

/** The backward of a stage in a root graph: takes outputs, their gradients and inputs; returns the inputs' gradients. */
export const stageBackwardOp = 'pipewright::stage_backward';
/** The sum of two gradients of which one may be missing. */
export const nullCoalesceAddOp = 'pipewright::null_coalesce_add';

/** Where the loss is in what the model returns: `true` is the loss, `false` is not, lists and objects are looked into. */
export type LossSpec = boolean | readonly LossSpec[] | { readonly [key: string]: LossSpec };

/** A model together with its loss. Subclasses say in `forward` what goes where. */
export abstract class LossWrapper extends nn.Module {
  readonly module: nn.Module;
  readonly lossFn: (...args: never[]) => Tensor;

  constructor(module: nn.Module, lossFn: (...args: never[]) => Tensor) {
    super();
    this.module = module;
    this.lossFn = lossFn;
  }
}

/**
 * A model of one input and a loss of its output and targets.
 *
 * @example pipeline(new TrivialLossWrapper(model, (y, t) => mseLoss(y, t)), { mbArgs: [x, target], stages: 2 })
 */
export class TrivialLossWrapper extends LossWrapper {
  /** All it returns is the loss. */
  readonly lossSpec: LossSpec = true;

  forward(x: Tensor, targets: Tensor): Tensor {
    const output = (this.module.forward as (input: Tensor) => unknown)(x);
    return (this.lossFn as (output: unknown, target: Tensor) => Tensor)(output, targets);
  }
}

/** The node of the loss, or null where the model returns none. Without a specification a key `loss` is the loss. */
export function findLossOutput(root: Graph, spec?: LossSpec): string | null {
  const { value } = outputOf(root);
  if (spec === undefined) {
    const isDict = typeof value === 'object' && value !== null && 'dict' in value;
    return isDict && value.dict['loss'] !== undefined ? lossNode(value.dict['loss']) : null;
  }
  const found = findLossBySpec(value, spec, 'the output');
  if (found === null)
    throw new PipelineError(
      'LOSS_SPEC',
      'lossSpec: nothing in it is true, so no output is the loss; write true in the place of the loss',
    );
  return found;
}

/** The first loss that a specification points at; every part is looked into before giving up. */
function findLossBySpec(value: GraphArgument, spec: LossSpec, path: string): string | null {
  if (spec === false) return null;
  if (spec === true) return lossNode(value);
  if (isList(spec)) {
    if (!isList(value) || value.length !== spec.length)
      throw mismatch(path, `a list of ${spec.length}`, isList(value) ? `a list of ${value.length}` : 'something else');
    return firstFound(spec.map((part, i) => findLossBySpec(value[i]!, part, `${path}[${i}]`)));
  }
  if (typeof spec !== 'object' || spec === null)
    throw new PipelineError(
      'LOSS_SPEC',
      `lossSpec: ${path} is ${String(spec)}; write true, false, a list or an object`,
    );
  const parts = spec as Readonly<Record<string, LossSpec>>;
  const keys = Object.keys(parts);
  const dict = typeof value === 'object' && value !== null && 'dict' in value ? value.dict : null;
  if (dict === null || Object.keys(dict).sort().join() !== [...keys].sort().join())
    throw mismatch(
      path,
      `an object with ${keys.join(', ')}`,
      dict === null ? 'something else' : `an object with ${Object.keys(dict).join(', ')}`,
    );
  return firstFound(keys.map((key) => findLossBySpec(dict[key] as GraphArgument, parts[key]!, `${path}.${key}`)));
}

function firstFound(found: readonly (string | null)[]): string | null {
  return found.find((each) => each !== null) ?? null;
}

function mismatch(path: string, wanted: string, got: string): PipelineError {
  return new PipelineError(
    'LOSS_SPEC',
    `lossSpec: ${path} is ${wanted} there, but the model returns ${got}; write it like the output`,
  );
}

function lossNode(value: GraphArgument): string {
  if (isReference(value)) return value.ref;
  throw new PipelineError('LOSS_SPEC', 'lossSpec: the place of the loss holds no tensor that the model computes');
}

/**
 * The root graph with the backward of every stage that the loss depends on, last stage first. What the graph returns stays;
 * the backwards work on the parameters' gradients.
 */
export function insertSymbolicBackward(root: Graph, loss: string): Graph {
  needNodes('insertSymbolicBackward', root);
  const isNode = root.nodes.some(({ name }) => name === loss);
  checkArgument(
    'insertSymbolicBackward',
    isNode,
    ['the loss', loss],
    'the name of a node, as findLossOutput returns it',
  );
  return new BackwardBuilder(root, loss).build();
}

class BackwardBuilder {
  private readonly root: Graph;
  private readonly loss: string;
  private readonly nodes: GraphNode[];
  private readonly names: Set<string>;
  private readonly live = new Set<string>();
  /** The gradient of each value so far. */
  private readonly grads = new Map<string, GraphArgument>();

  constructor(root: Graph, loss: string) {
    this.root = root;
    this.loss = loss;
    this.nodes = root.nodes.slice(0, -1);
    this.names = new Set(root.nodes.map(({ name }) => name));
  }

  build(): Graph {
    this.markLive();
    this.grads.set(this.loss, null);
    for (const node of this.root.nodes.toReversed())
      if (node.kind === 'module' && this.live.has(node.name)) this.backwardOf(node);
    const nodes = [...this.nodes, outputOf(this.root) as OutputNode];
    const graph: Graph = { ...this.root, nodes };
    checkGraph(graph, 'insertSymbolicBackward');
    return graph;
  }

  /** The loss and everything it is computed from. */
  private markLive(): void {
    this.live.add(this.loss);
    for (const node of this.root.nodes.toReversed())
      if (this.live.has(node.name)) for (const name of inputsOf(node)) this.live.add(name);
  }

  private backwardOf(call: ModuleCallNode): void {
    const elements = this.root.nodes.filter(
      (node): node is ElementNode => node.kind === 'element' && node.of.ref === call.name,
    );
    const outputs = elements.length === 0 ? [call.name] : outputList(elements);
    const isLive = (name: string | null): name is string => name !== null && this.live.has(name);
    const name = this.add({
      kind: 'call',
      name: unusedName('stage_backward', this.names),
      op: stageBackwardOp,
      args: [
        outputs.map((each) => (isLive(each) ? { ref: each } : null)),
        outputs.map((each) => (isLive(each) ? (this.grads.get(each) ?? null) : null)),
        inputsOf(call).map((ref) => ({ ref })),
      ],
    });
    inputsOf(call).forEach((input, index) => {
      const gradient = this.add({ kind: 'element', name: unusedName('getitem', this.names), of: { ref: name }, index });
      this.assignOrAccumulateGrad(input, gradient);
    });
  }

  private assignOrAccumulateGrad(value: string, gradient: string): void {
    const before = this.grads.get(value);
    const own: GraphArgument = { ref: gradient };
    if (before === undefined || before === null) {
      this.grads.set(value, own);
      return;
    }
    const sum = this.add({
      kind: 'call',
      name: unusedName('null_coalesce_add', this.names),
      op: nullCoalesceAddOp,
      args: [before, own],
    });
    this.grads.set(value, { ref: sum });
  }

  private add(node: CallNode | ElementNode): string {
    this.nodes.push(node);
    this.names.add(node.name);
    return node.name;
  }
}

/** The outputs of a stage by position; null where nobody reads one. */
function outputList(elements: readonly ElementNode[]): (string | null)[] {
  const list = new Array<string | null>(Math.max(...elements.map(({ index }) => index)) + 1).fill(null);
  for (const { name, index } of elements) list[index] = name;
  return list;
}
