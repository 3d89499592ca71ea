/**
 * @file Where an activation may overwrite its argument while no gradients are recorded: the argument was made by a layer
 * right before, is used nowhere else, and has the result's type. It saves the memory of the result, and making it.
 */
import type { CallNode, GraphNode, TensorMeta } from '../graph/graph.ts';

/** Activations, each of which computes in place what it computes elsewhere, bit for bit. */
const activations = new Set(
  ['relu', 'silu', 'sigmoid', 'tanh', 'leaky_relu', 'elu', 'hardtanh', 'hardswish', 'hardsigmoid', 'mish', 'relu6'].map(
    (name) => `aten::${name}`,
  ),
);

/** Layers whose result is memory of its own. */
const layers =
  /^aten::(linear|mm|bmm|addmm|baddbmm|conv[123]d|conv_transpose[123]d|convolution|layer_norm|batch_norm|group_norm)(\.|$)/;

/** The operator that computes a node in place, where that is allowed without gradients; else nothing. */
export function inPlaceOperator(
  node: CallNode,
  nodes: ReadonlyMap<string, GraphNode>,
  users: ReadonlyMap<string, readonly string[]>,
): string | undefined {
  if (!activations.has(node.op)) return undefined;
  const [self] = node.args;
  if (typeof self !== 'object' || self === null || !('ref' in self)) return undefined;
  const maker = nodes.get(self.ref);
  if (maker?.kind !== 'call' || !layers.test(maker.op) || users.get(self.ref)?.length !== 1) return undefined;
  const [before, after] = [floatType(maker), floatType(node)];
  return before !== undefined && before === after ? `${node.op}_` : undefined;
}

function floatType(node: GraphNode): string | undefined {
  const dtype = (node.meta as Partial<TensorMeta> | null | undefined)?.dtype;
  return dtype?.startsWith('float') === true || dtype === 'bfloat16' ? dtype : undefined;
}
