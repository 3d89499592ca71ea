/**
 * @file Which draw of random numbers a node is, so that a graph draws by name what the model it was made of would draw: by the
 * module that the node came from, the number of the module's call, and the number of the draw in that call.
 */
import { bindOp, type DrawName, drawName, drawsByName, inCall, type Registers } from '@pipewright/torch/internal';
import type { CallNode, GraphNode } from '../graph/graph.ts';

const random = new Map<string, boolean>();

/** Whether an operator draws random numbers, in some mode at least. */
function isRandom(op: string): boolean {
  let found = random.get(op);
  if (found === undefined) {
    try {
      found = op.startsWith('aten::') && bindOp(op).random;
    } catch {
      found = false; // there is no such operator, which whoever runs it will say
    }
    random.set(op, found);
  }
  return found;
}

/** Where a node's module stands in a forward: its name, and the number of its call. */
function callOf({ modules }: GraphNode): { readonly name: string; readonly call: number } {
  const path = modules?.at(-1)?.path ?? '';
  const call = /@(\d+)$/.exec(path)?.[1];
  return { name: path.replace(/@\d+/g, ''), call: call === undefined ? 0 : Number(call) };
}

/** Counts draws in the order of a graph. */
export class DrawCount {
  private readonly counts = new Map<string, number>();

  /** The number of a node that draws. */
  next(node: CallNode): number {
    const { name, call } = callOf(node);
    const key = `${name}@${call}`;
    const count = node.draw ?? this.counts.get(key) ?? 0;
    this.counts.set(key, count + 1);
    return count;
  }

  /** The node with its number, where it is not the first draw of its call. */
  number<Node extends GraphNode>(node: Node): Node {
    if (node.kind !== 'call' || !isRandom(node.op)) return node;
    const draw = this.next(node);
    return draw === 0 ? node : { ...node, draw };
  }
}

/** The run of a node that draws: by its name, while random numbers are drawn by name. */
export function drawingRun(
  node: CallNode,
  draws: DrawCount,
  run: (registers: Registers) => unknown,
): (registers: Registers) => unknown {
  const { name, call } = callOf(node);
  const at = { call, draw: draws.next(node) };
  const layer: DrawName = drawName(name);
  return (registers) => (drawsByName() ? inCall(layer, at, () => run(registers)) : run(registers));
}
