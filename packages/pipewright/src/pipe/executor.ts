/** @file Runs a pipe in this process, stage after stage. */
import { backward, isGradEnabled, type nn, Tensor } from '@pipewright/torch';
import { callForward } from '../base/call-forward.ts';
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { mapTensors } from '../base/tree.ts';
import { ArgumentBinder } from '../graph/call-signature.ts';
import type { CallNode, Graph, GraphArgument, GraphNode } from '../graph/graph.ts';
import { needNodes, outputOf, placeholdersOf } from '../graph/graph.ts';
import { nullCoalesceAddOp, stageBackwardOp } from './loss.ts';

/** Runs the root graph of a pipe; gradients flow through it as through the unsplit model. */
export class PipeExecutor {
  private readonly graph: Graph;
  private readonly moduleOf: (target: string) => nn.Module;
  private readonly binder: ArgumentBinder;
  private values = new Map<string, unknown>();

  constructor(graph: Graph, moduleOf: (target: string) => nn.Module) {
    needNodes('PipeExecutor', graph);
    checkArgument(
      'PipeExecutor',
      typeof moduleOf === 'function',
      ['moduleOf', moduleOf],
      'a function from name to module',
    );
    this.graph = graph;
    this.moduleOf = moduleOf;
    this.binder = new ArgumentBinder(graph);
  }

  /** Runs all stages and returns what the model returns. */
  run(...args: unknown[]): unknown {
    const inputs = this.binder.bind(args);
    this.values = new Map(placeholdersOf(this.graph).map(({ name }, i) => [name, inputs[i]]));
    for (const node of this.graph.nodes)
      if (node.kind !== 'placeholder' && node.kind !== 'output') this.values.set(node.name, this.node(node));
    return this.value(outputOf(this.graph).value);
  }

  private node(node: GraphNode): unknown {
    switch (node.kind) {
      case 'module':
        return this.callModule(node.target, node.args);
      case 'element':
        return (this.values.get(node.of.ref) as readonly unknown[])[node.index];
      case 'call':
        return this.callFunction(node);
      default:
        throw new PipelineError('INTERNAL', `internal: a root graph has no ${node.kind} here`);
    }
  }

  private callModule(target: string, args: readonly GraphArgument[]): unknown {
    const module = this.moduleOf(target);
    const given = args.map((arg) => mapTensors(this.value(arg), (tensor) => this.enter(tensor)));
    return callForward(module, given);
  }

  private callFunction({ op, args }: CallNode): unknown {
    const [first, second, third] = args.map((arg) => this.value(arg));
    if (op === nullCoalesceAddOp) return nullCoalesceAdd(first as Tensor | null, second as Tensor | null);
    if (op !== stageBackwardOp) throw new PipelineError('INTERNAL', `internal: a root graph has no ${op}`);
    const inputs = (third as readonly unknown[]).map((value) => (value instanceof Tensor ? this.enter(value) : null));
    return stageBackward(first as readonly (Tensor | null)[], second as readonly (Tensor | null)[], inputs);
  }

  /** What a stage gets for a tensor. */
  protected enter(tensor: Tensor): Tensor {
    return tensor;
  }

  private value(argument: GraphArgument): unknown {
    if (typeof argument !== 'object' || argument === null) return argument;
    if (isList(argument)) return argument.map((item) => this.value(item));
    if ('ref' in argument) return this.values.get(argument.ref);
    if ('dict' in argument)
      return Object.fromEntries(Object.entries(argument.dict).map(([key, item]) => [key, this.value(item)]));
    if ('float' in argument) return Number(String(argument.float).replace('inf', 'Infinity').replace('nan', 'NaN'));
    return Object.values(argument)[0];
  }
}

/**
 * Runs the root graph of a pipe as ranks would: a value that crosses a border arrives as a new leaf, on which its gradient
 * is found.
 *
 * @example const executor = new DetachExecutor(pipe.info().graph, (name) => modules.get(name)); executor.run(x)
 */
export class DetachExecutor extends PipeExecutor {
  private leaves = new Map<Tensor, Tensor>();

  override run(...args: unknown[]): unknown {
    this.leaves = new Map();
    return super.run(...args);
  }

  /** The leaf that stood for a value in the last run; the value itself where there was none. */
  leafOf(value: Tensor): Tensor {
    return this.leaves.get(value) ?? value;
  }

  /** A new leaf for a tensor that crosses a border; within one run the same tensor has the same leaf. */
  protected override enter(tensor: Tensor): Tensor {
    if (!tensor.requiresGrad || !isGradEnabled()) return tensor;
    let leaf = this.leaves.get(tensor);
    if (leaf === undefined) {
      leaf = tensor.detach().requiresGrad_();
      this.leaves.set(tensor, leaf);
    }
    return leaf;
  }
}

/** The sum of two gradients of which one may be missing. @example nullCoalesceAdd(null, grad) // grad */
export function nullCoalesceAdd(a: Tensor | null, b: Tensor | null): Tensor | null {
  for (const each of [a, b])
    checkArgument('nullCoalesceAdd', each === null || each instanceof Tensor, ['a gradient', each], 'a tensor or null');
  if (a === null) return b;
  return b === null ? a : a.add(b);
}

/**
 * The backward of one stage in this process: from its outputs and their gradients to those of its inputs. Parameters
 * accumulate theirs.
 *
 * @example const [dx] = stageBackward([y], [dy], [x])
 */
export function stageBackward(
  outputs: readonly (Tensor | null)[],
  grads: readonly (Tensor | null)[],
  inputs: readonly (Tensor | null)[],
): (Tensor | null)[] {
  for (const [name, list] of Object.entries({ outputs, grads, inputs }))
    checkArgument('stageBackward', isTensorList(list), [name, list], 'an array of tensors and nulls');
  const roots: Tensor[] = [];
  const given: (Tensor | null)[] = [];
  outputs.forEach((output, i) => {
    const gradient = grads[i] ?? null;
    if (output === null || !output.requiresGrad || (gradient === null && output.numel() !== 1)) return;
    roots.push(output);
    given.push(gradient);
  });
  if (roots.length > 0) backward(roots, { gradTensors: given });
  return inputs.map((input) => {
    if (input?.requiresGrad !== true) return null;
    const { grad } = input;
    input.grad = null; // another stage that takes the same value adds its own part
    return grad;
  });
}

function isTensorList(value: unknown): boolean {
  return Array.isArray(value) && value.every((each) => each === null || each instanceof Tensor);
}
