/** @file The C++ of the hot operators: each reads its arguments, calls `at::_ops::X::call` and wraps the result. */
import type { HotForm } from './hot-ops.ts';
import { baseName, camelCase, type Schema, type SchemaArgument, schemaText } from './schema.ts';

/** `add.Tensor` becomes `add_Tensor`: the name of the operator's struct in at::_ops, and of our function. */
export function nativeName(op: string): string {
  return op.replace('.', '_');
}

/** A schema default as C++ of the argument's type. */
function defaultValue(arg: SchemaArgument): string {
  const text = arg.default;
  if (text === undefined) throw new Error(`hot-native: argument ${arg.name} has no default`);
  if (text === 'None') return arg.type.startsWith('Tensor') ? 'std::optional<at::Tensor>()' : 'std::nullopt';
  if (text === 'True' || text === 'False') return text.toLowerCase();
  if (arg.type.startsWith('Scalar')) return `at::Scalar(${text})`;
  if (arg.type === 'str') return JSON.stringify(text.replaceAll(/^['"]|['"]$/g, ''));
  if (arg.type === 'MemoryFormat' && text === '0') return 'at::MemoryFormat::Contiguous';
  if (/^(int|float)\??$/.test(arg.type)) return text;
  throw new Error(`hot-native: no C++ for ${arg.type} ${arg.name}=${text}`);
}

const readers: Readonly<Record<string, (position: number, name: string) => string>> = {
  T: (i) => `args.tensor(${i})`,
  t: (i) => `args.optional_tensor(${i})`,
  N: (i, name) => `args.scalar(${i}, "${name}")`,
  i: (i, name) => `args.integer(${i}, "${name}")`,
  f: (i, name) => `args.number(${i}, "${name}")`,
  b: (i, name) => `args.boolean(${i}, "${name}")`,
  I: (i, name) => `args.ints(${i}, "${name}")`,
  A: (i) => `args.tensors(${i})`,
};

function isView(schema: Schema): boolean {
  return !schema.inPlace && schema.args.some((arg) => arg.aliased);
}

/** The C++ function of one form. */
function printForm(form: HotForm, schema: Schema): string {
  const lines: string[] = [];
  const call: string[] = [];
  const tensors: string[] = [];
  schema.args.forEach((arg, i) => {
    const code = form.args[i];
    if (code === undefined) {
      call.push(defaultValue(arg));
      return;
    }
    const name = `a${i}`;
    const reference = code === 'T' ? (schema.inPlace && i === 0 ? 'at::Tensor&' : 'const at::Tensor&') : 'const auto';
    lines.push(`    ${reference} ${name} = ${readers[code]?.(i, camelCase(arg.name)) ?? ''};`);
    call.push(name);
    if ('TtA'.includes(code)) tensors.push(name);
  });
  const invoke = `at::_ops::${nativeName(form.op)}::call(${call.join(', ')})`;
  const special = specials[form.op];
  if (schema.inPlace) lines.push(`    ${invoke};`, '    return nullptr;');
  else if (isView(schema)) lines.push(`    return args.wrap(${invoke});`);
  else if (special !== undefined) lines.push(`    return args.wrap(${special}(${call.join(', ')}));`);
  else lines.push(`    return args.wrap(hot_functional([&] { return ${invoke}; }, ${tensors.join(', ')}));`);
  return `// ${schemaText(schema)}
static napi_value ${nativeName(form.op)}(napi_env napi, napi_callback_info info) {
  return hot_entry<${form.args.length}>(napi, info, "${form.name}", [](const HotArgs& args) -> napi_value {
${lines.join('\n')}
  });
}
`;
}

/** Operators called through a function of our own in native/kernels. */
const specials: Readonly<Record<string, string>> = {
  linear: 'hot_linear',
  layer_norm: 'hot_layer_norm',
  cross_entropy_loss: 'hot_cross_entropy',
};

/** The whole of native/generated/hot-ops.cc. */
export function hotNativeFile(forms: readonly HotForm[], schemas: ReadonlyMap<string, Schema>, banner: string): string {
  const functions: string[] = [];
  const exports: string[] = [];
  const headers = new Set<string>();
  for (const form of forms) {
    const schema = schemas.get(form.op);
    if (schema === undefined) throw new Error(`hot-native: libtorch has no operator ${form.op}`);
    headers.add(`#include <ATen/ops/${baseName(schema)}_ops.h>`.replace(/_+_ops\.h/, '_ops.h'));
    functions.push(printForm(form, schema));
    exports.push(`    {"${form.op}", ${nativeName(form.op)}},`);
  }
  return `${banner}#include "core/hot.h"

${[...headers].sort().join('\n')}

namespace pw {
namespace {

${functions.join('\n')}
}  // namespace

void init_hot_ops(Env& env, napi_value exports) {
  napi_value target;
  napi_create_object(env.napi, &target);
  add_exports(env, target, {
${exports.join('\n')}
  });
  napi_set_named_property(env.napi, exports, "hot", target);
}

}  // namespace pw
`;
}
