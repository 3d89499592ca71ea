/** @file The structure of a program's inputs and outputs: the exporter writes it as JSON in a string; here it is a tree of arguments. */
import type { GraphArgument } from '../graph/graph.ts';
import { JsonCursor } from './json-cursor.ts';
import { shown } from './pt2-error.ts';

/** A structure: `null` is a leaf. */
export type TreeSpec =
  | null
  | { readonly list: readonly TreeSpec[] }
  | { readonly dict: readonly (readonly [string, TreeSpec])[] };

/** Names of the fields of named tuples, by their registered name. */
export type NamedTuples = ReadonlyMap<string, readonly string[]>;

/** Reads a structure from its text. */
export function readTreeSpec(text: JsonCursor, tuples: NamedTuples): TreeSpec {
  const source = nested(text);
  const [protocol, tree] = source.list();
  if (protocol?.value !== 1 || tree === undefined)
    throw text.wrong(`a structure of protocol 1 is expected, got ${shown(String(protocol?.value))}`);
  return readNode(tree, tuples);
}

/** JSON in a string. */
function nested(text: JsonCursor): JsonCursor {
  try {
    return new JsonCursor(JSON.parse(text.text()), text.file, text.place);
  } catch (error) {
    if (error instanceof SyntaxError) throw text.wrong('the structure is not JSON');
    throw error;
  }
}

function readNode(node: JsonCursor, tuples: NamedTuples, depth = 0): TreeSpec {
  if (depth > 100) throw node.wrong('the structure is nested deeper than 100');
  const type = node.find('type')?.text();
  if (type === undefined) return null;
  const children = node
    .get('children_spec')
    .list()
    .map((child) => readNode(child, tuples, depth + 1));
  switch (type) {
    case 'builtins.tuple':
    case 'builtins.list':
    case 'collections.deque':
    case 'torch.fx.immutable_collections.immutable_list':
      return { list: children };
    case 'builtins.dict':
    case 'collections.OrderedDict':
    case 'torch.fx.immutable_collections.immutable_dict':
      return named(node, keysOf(nested(node.get('context'))), children);
    case 'collections.defaultdict':
      return named(node, keysOf(node.get('context').get('dict_context')), children);
    case 'collections.namedtuple': {
      const name = node.get('context').text();
      return named(node, tuples.get(name) ?? children.map((_, i) => String(i)), children);
    }
    default:
      if (type.startsWith('torch.return_types.')) return { list: children };
      return readClass(node, type, children);
  }
}

/** A registered class: a data class has two lists of fields as context, those present and those that were None. */
function readClass(node: JsonCursor, type: string, children: readonly TreeSpec[]): TreeSpec {
  const context = node.find('context')?.value;
  let value: unknown = context;
  try {
    if (typeof context === 'string') value = JSON.parse(context);
  } catch {
    value = undefined;
  }
  const lists: readonly unknown[] = Array.isArray(value) ? value : [];
  const names = lists.length === 2 && Array.isArray(lists[0]) ? (lists[0] as unknown[]) : lists;
  if (names.length === children.length && names.every((name) => typeof name === 'string'))
    return named(node, names, children);
  if (children.length === 0) return { list: [] };
  throw node.wrong(`the structure has the Python class ${shown(type)}, whose fields the file does not name`);
}

function keysOf(keys: JsonCursor): string[] {
  return keys.list().map((key) => {
    const { value } = key;
    if (typeof value === 'string') return value;
    if (typeof value === 'number' || typeof value === 'boolean' || value === null) return String(value);
    if (typeof value === 'object' && '__enum__' in value && 'name' in value) return String(value.name);
    throw key.wrong('a key is a string, number, boolean or null');
  });
}

function named(node: JsonCursor, keys: readonly string[], children: readonly TreeSpec[]): TreeSpec {
  if (keys.length !== children.length) throw node.wrong(`${keys.length} names for ${children.length} parts`);
  if (new Set(keys).size !== keys.length || keys.includes('__proto__'))
    throw node.wrong('names that cannot be told apart');
  return { dict: keys.map((key, i) => [key, children[i] as TreeSpec]) };
}

/** Number of leaves. */
export function countLeaves(spec: TreeSpec): number {
  if (spec === null) return 1;
  const parts = 'list' in spec ? spec.list : spec.dict.map(([, item]) => item);
  return parts.reduce((sum, part) => sum + countLeaves(part), 0);
}

/** Puts leaves, in order, into a structure. */
export function fillTree(spec: TreeSpec, leaves: readonly GraphArgument[]): GraphArgument {
  let next = 0;
  const build = (part: TreeSpec): GraphArgument => {
    if (part === null) return leaves[next++] as GraphArgument;
    if ('list' in part) return part.list.map(build);
    return { dict: Object.fromEntries(part.dict.map(([key, item]) => [key, build(item)])) };
  };
  return build(spec);
}
