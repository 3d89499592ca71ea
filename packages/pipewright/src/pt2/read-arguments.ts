/** @file The arguments of nodes in a `.pt2` program: literals, names of values, sub-graphs. */
import type { GraphArgument, NodeReference } from '../graph/graph.ts';
import { readDevice, readDType, readLayout, readMemoryFormat } from './codes.ts';
import type { JsonCursor } from './json-cursor.ts';
import { shown } from './pt2-error.ts';

/** What an argument may refer to. */
export interface ArgumentScope {
  /** The node that makes a value. */
  readonly value: (name: string, at: JsonCursor) => NodeReference;
  /** Takes in a sub-graph. */
  readonly graph: (argument: JsonCursor) => GraphArgument;
}

/** Reads one argument. */
export function readArgument(argument: JsonCursor, scope: ArgumentScope): GraphArgument {
  const [tag, value] = argument.union();
  const read = Object.hasOwn(readers, tag) ? readers[tag] : undefined;
  if (read === undefined) throw argument.wrong(`unknown kind of argument ${shown(tag)}`);
  return read(value, scope);
}

type Reader = (value: JsonCursor, scope: ArgumentScope) => GraphArgument;

const listOf =
  (read: Reader): Reader =>
  (value, scope) =>
    value.list().map((item) => read(item, scope));

const named: Reader = (value, scope) => {
  const name = value.get('name');
  return scope.value(name.text(), name);
};

const readInt: Reader = (value) => integerArgument(value);
const readFloat: Reader = (value) => floatArgument(value.float());
const readBool: Reader = (value) => value.bool();
const readText: Reader = (value) => value.text();

/** A literal, or the name of a value. */
const symbolic =
  (literal: Reader): Reader =>
  (value, scope) => {
    const [tag, inner] = value.union();
    return tag === 'as_name' ? scope.value(inner.text(), inner) : literal(inner, scope);
  };

const optionalTensor: Reader = (value, scope) => {
  const [tag, inner] = value.union();
  return tag === 'as_none' ? null : named(inner, scope);
};

const readers: Readonly<Record<string, Reader>> = {
  as_none: () => null,
  as_tensor: named,
  as_tensors: listOf(named),
  as_nested_tensors: listOf(listOf(named)),
  as_optional_tensor: optionalTensor,
  as_optional_tensors: listOf(optionalTensor),
  as_int: readInt,
  as_ints: listOf(readInt),
  as_int_lists: listOf(listOf(readInt)),
  as_float: readFloat,
  as_floats: listOf(readFloat),
  as_float_lists: listOf(listOf(readFloat)),
  as_bool: readBool,
  as_bools: listOf(readBool),
  as_string: readText,
  as_strings: listOf(readText),
  as_complex: (value) => ({ complex: [finite(value.get('real')), finite(value.get('imag'))] }),
  as_sym_int: symbolic(readInt),
  as_sym_ints: listOf(symbolic(readInt)),
  as_sym_float: symbolic(readFloat),
  as_sym_floats: listOf(symbolic(readFloat)),
  as_sym_bool: symbolic(readBool),
  as_sym_bools: listOf(symbolic(readBool)),
  as_scalar_type: (value) => ({ dtype: readDType(value).name }),
  as_memory_format: (value) => ({ memoryFormat: readMemoryFormat(value) }),
  as_layout: (value) => ({ layout: readLayout(value) }),
  as_device: (value) => ({ device: readDevice(value) }),
  as_graph: (value, scope) => scope.graph(value),
  as_custom_obj: (value) => {
    throw value.wrong(customObject(value));
  },
  as_operator: (value) => {
    throw value.wrong(`operator ${shown(value.text())} is passed as a value, which cannot be run here`);
  },
  as_string_to_argument: (value, scope) => ({
    dict: Object.fromEntries(value.entries().map(([key, item]) => [key, readArgument(item, scope)])),
  }),
};

function finite(value: JsonCursor): number {
  const number = value.float();
  if (!Number.isFinite(number)) throw value.wrong('a part of a complex number is not finite');
  return number;
}

/** Why an object of a Python class cannot be had. */
export function customObject(value: JsonCursor): string {
  const name = shown(value.get('name').text());
  const type = shown(value.find('class_fqn')?.text() ?? 'unknown');
  return `object ${name} of class ${type} is stored as a Python pickle, which is never opened; export the model without it`;
}

/** An integer as an argument: digits where a number is not exact. */
export function integerArgument(value: JsonCursor): GraphArgument {
  const exact = value.bigInt();
  return exact >= BigInt(Number.MIN_SAFE_INTEGER) && exact <= BigInt(Number.MAX_SAFE_INTEGER)
    ? Number(exact)
    : { int: exact.toString() };
}

/** A float as an argument. */
export function floatArgument(value: number): GraphArgument {
  if (Number.isFinite(value)) return { float: value };
  return { float: Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf' };
}
