/** @file Which units of a model are the same work: the layers of most models repeat, and what is measured of one tells of all. */
import type { GraphModule } from '../execute/graph-module.ts';
import { eachReference, type Graph, type GraphArgument, mapReferences } from '../graph/graph.ts';

/** A text that units have in common which do the same with values and parameters of the same kinds: only names differ. */
export function kindOfUnit(module: GraphModule): string {
  const trained = module.parameters().map((each) => each.requiresGrad);
  return JSON.stringify([shapeOf(module.graph), trained]);
}

/** A graph without names. */
function shapeOf({ nodes, graphs = {} }: Graph): unknown {
  const places = new Map(nodes.map(({ name }, i) => [name, i]));
  const placed = (value: GraphArgument): GraphArgument =>
    mapReferences(value, ({ ref }) => ({ ref: String(places.get(ref) ?? ref) }));
  const shapes = nodes.map((node): unknown => {
    const { kind, meta = null } = node;
    switch (kind) {
      case 'placeholder':
        return [kind, meta];
      case 'attribute':
        return [kind, node.role, meta];
      case 'element':
        return [kind, placed(node.of), node.index];
      case 'output': {
        const used: (number | undefined)[] = [];
        eachReference(node.value, (name) => used.push(places.get(name)));
        return [kind, used];
      }
      case 'call':
        return [kind, node.op, node.args.map(placed), placed({ dict: node.kwargs ?? {} }), meta];
      case 'module':
        return [kind, node.target, node.args.map(placed), placed({ dict: node.kwargs ?? {} }), meta];
    }
  });
  return [shapes, Object.values(graphs).map(shapeOf)];
}
