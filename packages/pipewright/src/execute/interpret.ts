/**
 * @file Runs a graph node by node through ordinary calls, so that a tracer sees each operator.
 * Slower than a program; the results are the same.
 */
import { autocast, callOp, checkpoint, enableGrad, float, noGrad, type Tensor } from '@pipewright/torch';
import { callForward } from '../base/call-forward.ts';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { callCustomFunction, isCustomFunction } from '../graph/custom-functions.ts';
import type { CallNode, Graph, GraphArgument, GraphNode } from '../graph/graph.ts';
import { floatNumber, outputOf, pipeSplitOp, trainingOp } from '../graph/graph.ts';
import { pipeSplit } from '../graph/mark.ts';
import type { CompileContext } from './compile.ts';
import { runScalarOp, scalarOp } from './scalar-ops.ts';

/** Runs a graph on tensors and numbers, operator by operator. */
export function interpretGraph(
  graph: Graph,
  inputs: readonly unknown[],
  context: CompileContext,
  attributes: readonly Tensor[],
): unknown {
  return new Interpreter(graph, context, attributes).run(inputs);
}

class Interpreter {
  private readonly graph: Graph;
  private readonly context: CompileContext;
  private readonly attributes: readonly Tensor[];
  private readonly values = new Map<string, unknown>();

  constructor(graph: Graph, context: CompileContext, attributes: readonly Tensor[]) {
    this.graph = graph;
    this.context = context;
    this.attributes = attributes;
  }

  run(inputs: readonly unknown[]): unknown {
    let next = 0;
    for (const node of this.graph.nodes)
      this.values.set(node.name, node.kind === 'placeholder' ? inputs[next++] : this.node(node));
    return this.value(outputOf(this.graph).value, 'plain');
  }

  private node(node: Exclude<GraphNode, { kind: 'placeholder' }>): unknown {
    switch (node.kind) {
      case 'attribute':
        return this.attributes[this.context.attribute(node.target)];
      case 'call':
        return this.call(node);
      case 'module': {
        const module = this.context.module(node.target);
        const args = node.args.map((arg) => this.value(arg, 'plain'));
        if (node.kwargs !== undefined) args.push(this.dict(node.kwargs, 'plain'));
        return callForward(module, args);
      }
      case 'element':
        return (this.values.get(node.of.ref) as readonly unknown[])[node.index];
      case 'output':
        return undefined;
    }
  }

  private call(node: CallNode): unknown {
    const { op, meta } = node;
    if (op === pipeSplitOp) return pipeSplit();
    if (op === trainingOp) return this.context.training();
    if (op === 'aten::_assert_tensor_metadata') return undefined;
    if (op === 'aten::sym_size.int') return (this.value(node.args[0] ?? null) as Tensor).size(node.args[1] as number);
    if (op.startsWith('higher_order::')) return this.higherOrder(node);
    const args = node.args.map((arg) => this.value(arg));
    if (isCustomFunction(op)) return callCustomFunction(op, args);
    const scalar = scalarOp(op);
    if (scalar === undefined) return callOp(op, args, this.dict(node.kwargs ?? {}, 'marked'));
    const kind = meta !== undefined && meta !== null && 'scalar' in meta ? meta.scalar : 'float';
    return runScalarOp(op, scalar, kind, [
      ...node.args.map((arg) => this.value(arg, 'plain')),
      ...Object.values(this.dict(node.kwargs ?? {}, 'plain')),
    ]);
  }

  private higherOrder(node: CallNode): unknown {
    const [first, second, third, fourth] = node.args.map((arg) => (isGraph(arg) ? arg : this.value(arg, 'plain')));
    const at = node.args.findIndex(isGraph);
    const inner = this.graph.graphs?.[(node.args[at] as { graph: string } | undefined)?.graph ?? ''];
    const operands = node.args.slice(at + 1).map((arg) => this.value(arg));
    const body = (...given: unknown[]): unknown =>
      inner === undefined ? undefined : interpretGraph(inner, given.flat(), this.context, this.attributes);
    switch (node.op.slice('higher_order::'.length)) {
      case 'wrap_with_set_grad_enabled':
        return first === true ? enableGrad(() => body(...operands)) : noGrad(() => body(...operands));
      case 'run_if':
        return first === true ? body(...operands) : undefined;
      case 'wrap_with_autocast': {
        const options = {
          device: this.context.device(String(first)),
          enabled: third === true,
          ...(second === 'bfloat16' || second === 'float16' ? { dtype: second as 'float16' } : {}),
          ...(fourth === null ? {} : { cache: fourth === true }),
        };
        return autocast(options, () => body(...operands));
      }
      case 'tag_activation_checkpoint':
      case 'wrap_activation_checkpoint':
      case 'checkpoint':
        return checkpoint(body, operands);
      case 'wrap':
      case 'strict_mode':
        return body(...operands);
      default:
        throw new PipelineError(
          'GRAPH_TRACE',
          `node '${node.name}': a graph with ${node.op} cannot be recorded by running it; use its graph as it is`,
        );
    }
  }

  private dict(values: Readonly<Record<string, GraphArgument>>, floats: 'marked' | 'plain'): Record<string, unknown> {
    return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, this.value(value, floats)]));
  }

  /** The value of an argument. Operators need floats that are marked as such, modules and results plain ones. */
  private value(argument: GraphArgument, floats: 'marked' | 'plain' = 'marked'): unknown {
    if (typeof argument !== 'object' || argument === null) return argument;
    if (isList(argument)) return argument.map((item) => this.value(item, floats));
    if ('ref' in argument) return this.values.get(argument.ref);
    if ('float' in argument)
      return floats === 'plain' ? floatNumber(argument.float) : float(floatNumber(argument.float));
    if ('int' in argument) return BigInt(argument.int);
    if ('complex' in argument) return { re: argument.complex[0], im: argument.complex[1] };
    if ('dict' in argument) return this.dict(argument.dict, floats);
    if ('device' in argument) return this.context.device(argument.device);
    return Object.values(argument)[0];
  }
}

function isGraph(value: GraphArgument): value is { readonly graph: string } {
  return typeof value === 'object' && value !== null && 'graph' in value;
}
