/** @file What a `.pt2` program says about values (types, sizes, devices) and nodes (the modules they came from). */
import type { Dim, ModuleCall, ScalarMeta, TensorMeta, ValueMeta } from '../graph/graph.ts';
import { readDevice, readDType } from './codes.ts';
import type { JsonCursor } from './json-cursor.ts';
import { formatSymbolic } from './symbolic.ts';

/** The metadata of the values of one graph, by name; each is read when it is asked for. */
export class ValueTable {
  private readonly tensors: JsonCursor;
  private readonly scalars: readonly (readonly [ScalarMeta['scalar'], JsonCursor | undefined])[];

  constructor(graph: JsonCursor) {
    this.tensors = graph.get('tensor_values');
    this.scalars = [
      ['int', graph.find('sym_int_values')],
      ['float', graph.find('sym_float_values')],
      ['bool', graph.find('sym_bool_values')],
    ];
  }

  /** What is known of a value, or nothing. */
  find(name: string): ValueMeta | undefined {
    const tensor = this.tensors.find(name);
    if (tensor !== undefined) return readTensorMeta(tensor);
    for (const [scalar, table] of this.scalars) {
      const value = table?.find(name);
      if (value !== undefined) return readScalarMeta(scalar, value);
    }
    return undefined;
  }
}

function readScalarMeta(scalar: ScalarMeta['scalar'], value: JsonCursor): ScalarMeta {
  const [tag, inner] = value.union();
  if (tag === 'as_expr') return { scalar, value: formatSymbolic(inner.get('expr_str').text()) };
  if (scalar === 'int') return { scalar, value: inner.int() };
  const number = scalar === 'float' ? inner.float() : Number(inner.bool());
  return Number.isFinite(number) ? { scalar, value: number } : { scalar };
}

/** The metadata of a tensor. */
function readTensorMeta(meta: JsonCursor): TensorMeta {
  const shape = meta.get('sizes').list().map(readDim);
  const stride = meta.get('strides').list().map(readDim);
  if (stride.length !== shape.length) throw meta.wrong(`${shape.length} sizes, but ${stride.length} strides`);
  return {
    dtype: readDType(meta.get('dtype')).name,
    shape,
    stride,
    device: readDevice(meta.get('device')),
    ...(meta.get('requires_grad').bool() ? { requiresGrad: true } : {}),
  };
}

function readDim(size: JsonCursor): Dim {
  const [tag, value] = size.union();
  if (tag === 'as_int') return value.int();
  if (tag === 'as_expr') return formatSymbolic(value.get('expr_str').text());
  throw size.wrong('a size is a number or an expression');
}

const synthetic = '_empty_nn_module_stack_from_metadata_hook';

/** The module calls around a node: `label,path,class;...`, outermost first. */
export function readModules(metadata: JsonCursor | undefined): ModuleCall[] | undefined {
  const stack = metadata?.find('nn_module_stack')?.value;
  if (typeof stack !== 'string' || stack === '') return undefined;
  const calls: ModuleCall[] = [];
  for (const record of splitOutside(stack, ';')) {
    const [label, path, type] = splitOutside(record, ',');
    if (label === undefined || path === undefined || type === undefined || path === synthetic) continue;
    const repeat = /@(\d{1,9})$/.exec(label)?.[1];
    calls.push({ path: path.replace(/@\d+$/, ''), type, ...(repeat === undefined ? {} : { call: Number(repeat) }) });
  }
  return calls.length === 0 ? undefined : calls;
}

const frame = /File "([^"\n]+)", line (\d+), in [^\n]*(?:\n[ \t]+([^\n]*))?/g;
const longestSource = 300;

/** The line of the model that a node came from: the innermost one that is not in PyTorch itself. */
export function readSource(metadata: JsonCursor | undefined): string | undefined {
  const trace = metadata?.find('stack_trace')?.value;
  if (typeof trace !== 'string') return undefined;
  const frames = [...trace.matchAll(frame)];
  const own = frames.findLast(([, file]) => !/[\\/]site-packages[\\/]torch[\\/]/.test(file!)) ?? frames.at(-1);
  if (own === undefined) return undefined;
  const [, file, line, code = ''] = own;
  const text = `${file}:${line}${code === '' ? '' : `: ${code.trim()}`}`.replaceAll(/\p{C}/gu, '?');
  return text.length > longestSource ? `${text.slice(0, longestSource - 3)}...` : text;
}

/** Splits text at a separator outside of brackets. */
function splitOutside(text: string, separator: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < text.length; i++) {
    const letter = text[i]!;
    if (letter === '(' || letter === '[') depth++;
    else if (letter === ')' || letter === ']') depth--;
    else if (letter === separator && depth <= 0) {
      parts.push(text.slice(start, i));
      start = i + 1;
    }
  }
  parts.push(text.slice(start));
  return parts;
}
