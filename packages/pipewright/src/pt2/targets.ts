/** @file The operators of a `.pt2` program, by the names that graphs have for them. */
import type { JsonCursor } from './json-cursor.ts';
import { shown } from './pt2-error.ts';

const scalarFunctions: Readonly<Record<string, string>> = {
  'math.trunc': 'trunc',
  'math.floor': 'floor',
  'math.ceil': 'ceil',
  'torch.sym_int': 'int',
  'torch.sym_float': 'float',
  'torch.sym_not': 'not',
  'torch.sym_max': 'max',
  'torch.sym_min': 'min',
  'torch.sym_ite': 'ite',
  'torch.sym_sqrt': 'sqrt',
  'torch._sym_sqrt': 'sqrt',
};

/** Operators that do more than compute: a file of unknown origin shall not touch files, other ranks or foreign memory. */
const refused =
  /^(aten::from_file|mkldnn::data_ptr|(inductor|c10d|_c10d_functional|_c10d_functional_autograd|symm_mem|fsdp|static_runtime|profiler|_test)::)/;

/** Operators that skip the check of their indices, and those that do the same with it. */
const checked: Readonly<Record<string, string>> = {
  'aten::_unsafe_index.Tensor': 'aten::index.Tensor',
  'aten::_unsafe_index_put': 'aten::index_put',
};

/**
 * The operator of a target: `torch.ops.aten.add.Tensor` is `aten::add.Tensor`, `_operator.mul` is `scalar::mul`. A Python
 * function becomes `python::...`, which nothing can run.
 */
export function readTarget(target: JsonCursor): string {
  const text = target.text();
  const op = /^torch\.ops\.(\w+)\.(\w+)(?:\.(\w+))?$/.exec(text);
  if (op !== null) {
    const [, space, name, overload] = op as unknown as [string, string, string, string | undefined];
    const full =
      overload === undefined || overload === 'default' ? `${space}::${name}` : `${space}::${name}.${overload}`;
    if (refused.test(full)) throw target.wrong(`${full} does more than compute, which a file may not`);
    return Object.hasOwn(checked, full) ? checked[full]! : full;
  }
  const scalar = /^_operator\.(\w+?)_?$/.exec(text)?.[1];
  if (scalar !== undefined) return `scalar::${scalar}`;
  if (Object.hasOwn(scalarFunctions, text)) return `scalar::${scalarFunctions[text]}`;
  if (/^\w+(\.\w+)+$/.test(text)) return `python::${text}`;
  throw target.wrong(`${shown(text)} is not the name of an operator`);
}
