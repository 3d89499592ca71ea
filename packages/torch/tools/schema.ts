/** @file An operator's schema as the generator sees it: read from the addon, printed, named in camelCase. */

/** One argument; the shape of the addon's `NativeArgument`. */
export interface SchemaArgument {
  readonly name: string;
  readonly type: string;
  readonly keywordOnly: boolean;
  readonly written: boolean;
  readonly aliased: boolean;
  readonly default?: string;
}

/** One overload; the shape of the addon's `NativeSchema`. */
export interface Schema {
  readonly name: string;
  readonly overload: string;
  readonly args: readonly SchemaArgument[];
  readonly returns: readonly string[];
  readonly inPlace: boolean;
}

/** `aten::add` without its namespace. */
export function baseName(schema: Schema): string {
  return schema.name.slice(schema.name.indexOf('::') + 2);
}

/** `add.Tensor`, or `mm` for the overload without a name. */
export function opName(schema: Schema): string {
  return schema.overload === '' ? baseName(schema) : `${baseName(schema)}.${schema.overload}`;
}

/** `batch_first` becomes `batchFirst`; a trailing underscore stays: `add_`. The same rule as `src/op/bind.ts`. */
export function camelCase(name: string): string {
  return name.replace(/(?<=[a-z0-9A-Z])_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** `layer_norm` becomes `LayerNorm`. */
export function pascalCase(name: string): string {
  const camel = camelCase(name).replace(/_/g, '');
  return camel.charAt(0).toUpperCase() + camel.slice(1);
}

/** `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)`: what the run time parses. */
export function signatureText(schema: Schema): string {
  const parts: string[] = [];
  let keywordOnly = false;
  for (const arg of schema.args) {
    if (arg.keywordOnly && !keywordOnly) {
      parts.push('*');
      keywordOnly = true;
    }
    parts.push(`${arg.type} ${arg.name}${arg.default === undefined ? '' : `=${defaultText(arg)}`}`);
  }
  return `${opName(schema)}(${parts.join(', ')})`;
}

/** The whole schema on one line. */
export function schemaText(schema: Schema): string {
  const { returns } = schema;
  const result = returns.length === 1 ? returns[0]! : `(${returns.join(', ')})`;
  return `${signatureText(schema)} -> ${result}`;
}

/** A default value without the noise of binary floats: 1e-05 rather than 1.0000000000000001e-05. */
function defaultText(arg: SchemaArgument): string {
  const text = arg.default!;
  if (!/^(float|Scalar)/.test(arg.type) || !/[.e]/.test(text)) return text.replaceAll(', ', ',');
  const number = Number(text);
  return Number.isNaN(number) ? text : Number.isInteger(number) ? `${number}.` : String(number);
}

/** Whether the result is written into an `out` argument. */
export function isOutVariant(schema: Schema): boolean {
  return schema.args.some((arg) => arg.written && arg.keywordOnly) || /(^|_)out$/.test(schema.overload);
}

/** Whether it makes a tensor from nothing but options: it takes dtype, layout, device and pin_memory by name. */
export function isFactory(schema: Schema): boolean {
  const named = new Set(schema.args.filter((arg) => arg.keywordOnly).map((arg) => arg.name));
  return ['dtype', 'layout', 'device', 'pin_memory'].every((name) => named.has(name));
}

/** Whether it can be a method: the first argument is the tensor `self`. */
export function isMethod(schema: Schema): boolean {
  const first = schema.args[0];
  return first !== undefined && first.name === 'self' && first.type === 'Tensor';
}
