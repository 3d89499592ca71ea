/**
 * @file Constants that forward makes and then changes in place, such as a `tensor(0)` that losses are added to: the graph holds
 * their first value, and every call changes a copy of its own.
 */
import { changedBy, memoryOf } from '../graph/effects.ts';
import { type CallNode, inputsOf, mapNodeReferences } from '../graph/graph.ts';
import type { FlatNode } from '../graph/regions.ts';
import { unusedName } from '../graph/unused-name.ts';
import type { RecordedAttribute } from './recorder.ts';

/** The nodes of a run with copies of the constants that it makes and changes, each right before its first use. */
export function withOwnConstants(
  recorded: readonly FlatNode[],
  attributes: readonly RecordedAttribute[],
): readonly FlatNode[] {
  const made = new Map(attributes.flatMap((each) => (each.isMadeAnew ? [[each.name, each] as const] : [])));
  if (made.size === 0) return recorded;
  const nodes = new Map(recorded.map(({ node }) => [node.name, node]));
  const changed = new Set(recorded.flatMap(({ node }) => changedBy(node).map((name) => memoryOf(name, nodes))));
  const taken = new Set([...nodes.keys(), ...attributes.map(({ name }) => name)]);
  const copies = new Map<string, string>();
  return recorded.flatMap(({ node, regions }): FlatNode[] => {
    const before: FlatNode[] = [];
    for (const name of inputsOf(node)) {
      const constant = changed.has(name) ? made.get(name) : undefined;
      if (constant === undefined || copies.has(name)) continue;
      const copy = unusedName(`${name}_own`, taken);
      taken.add(copy);
      copies.set(name, copy);
      const { meta } = constant;
      const clone: CallNode = { kind: 'call', name: copy, op: 'aten::clone', args: [{ ref: name }], meta };
      before.push({ node: node.modules === undefined ? clone : { ...clone, modules: node.modules }, regions });
    }
    return [...before, { node: mapNodeReferences(node, ({ ref }) => ({ ref: copies.get(ref) ?? ref })), regions }];
  });
}
