/** @file The TypeScript side of a schema: parameter types, options objects, call signatures. */
import { baseName, camelCase, isFactory, pascalCase, type Schema, type SchemaArgument } from './schema.ts';

const plainTypes: Readonly<Record<string, string>> = {
  Tensor: 'Tensor',
  'Tensor|Scalar': 'Tensor | Scalar',
  int: 'Int',
  float: 'Float',
  bool: 'boolean',
  Scalar: 'Scalar',
  complex: 'Scalar',
  str: 'string',
  ScalarType: 'DTypeLike',
  Layout: 'Layout',
  MemoryFormat: 'MemoryFormat',
  Device: 'Device',
  Generator: 'Generator',
};

const returnTypes: Readonly<Record<string, string>> = {
  Tensor: 'Tensor',
  int: 'number',
  float: 'number',
  bool: 'boolean',
  Scalar: 'Element',
  ScalarType: 'DType',
  'Tensor[]': 'Tensor[]',
};

/** The TypeScript type of a schema type as an argument. */
export function argumentType(type: string): string {
  if (type.endsWith('?')) return `${argumentType(type.slice(0, -1))} | null`;
  const list = /^(.*)\[(\d*)\]$/.exec(type);
  if (list !== null) {
    const element = argumentType(list[1]!);
    const many = `readonly ${element.includes('|') ? `(${element})` : element}[]`;
    return list[2] === '' ? many : `${element} | ${many}`;
  }
  return plainTypes[type] ?? 'unknown';
}

/** The TypeScript type of what an operator returns. */
export function returnType(returns: readonly string[]): string {
  const types = returns.map((type) => returnTypes[type] ?? 'unknown');
  if (types.length === 0) return 'void';
  return types.length === 1 ? types[0]! : `[${types.join(', ')}]`;
}

const reserved = new Set([
  'in',
  'var',
  'with',
  'default',
  'function',
  'this',
  'new',
  'delete',
  'import',
  'export',
  'eval',
  'arguments',
]);

/** A parameter name that JavaScript accepts. */
function parameterName(name: string): string {
  const camel = camelCase(name);
  return reserved.has(camel) ? `${camel}Value` : camel;
}

interface Parameter {
  readonly name: string;
  readonly key: string;
  readonly type: string;
  readonly optional: boolean;
  readonly keywordOnly: boolean;
}

function parameters(schema: Schema, skipSelf: boolean): Parameter[] {
  return schema.args.slice(skipSelf ? 1 : 0).map((arg: SchemaArgument) => ({
    name: parameterName(arg.name),
    key: camelCase(arg.name),
    type: argumentType(arg.type),
    optional: arg.default !== undefined || (arg.keywordOnly && arg.type.endsWith('?')),
    keywordOnly: arg.keywordOnly,
  }));
}

/** Names the options objects and gathers those that deserve an interface. */
export class OptionTypes {
  private readonly byShape = new Map<string, string>();
  private readonly shapes = new Map<string, string>();

  /** The type text of an options object with these members: inline when short, a named interface otherwise. */
  typeOf(schema: Schema, members: readonly Parameter[]): string {
    const all = isFactory(schema) ? [...members, requiresGrad] : members;
    const lines = all.map(
      (member) => `${member.key}${member.optional ? '?' : ''}: ${member.type}${member.optional ? ' | undefined' : ''}`,
    );
    if (all.length <= 1) return `{ ${lines.join('; ')} }`;
    const shape = lines.join(';\n  ');
    const known = this.byShape.get(shape);
    if (known !== undefined) return known;
    const stem = `${pascalCase(baseName(schema))}`;
    let name = `${stem}Options`;
    for (let i = 2; this.shapes.has(name); i++) name = `${stem}Options${i}`;
    this.byShape.set(shape, name);
    this.shapes.set(name, shape);
    return name;
  }

  /** The interfaces, in the order they were asked for. */
  print(): string {
    return [...this.shapes].map(([name, shape]) => `export interface ${name} {\n  ${shape};\n}\n`).join('');
  }

  get names(): string[] {
    return [...this.shapes.keys()];
  }
}

const requiresGrad: Parameter = {
  name: 'requiresGrad',
  key: 'requiresGrad',
  type: 'boolean',
  optional: true,
  keywordOnly: true,
};

/** The call signatures of one overload, without the name: `(other: Tensor): Tensor`. */
export function signatures(schema: Schema, options: OptionTypes, form: 'method' | 'function'): string[] {
  const params = parameters(schema, form === 'method');
  const result = schema.inPlace ? (form === 'method' ? 'this' : 'Tensor') : returnType(schema.returns);
  const positional = params.filter((param) => !param.keywordOnly);
  const firstOptional = positional.findIndex((param) => param.optional);
  const required = firstOptional < 0 ? positional : positional.slice(0, firstOptional);
  const optional = firstOptional < 0 ? [] : positional.slice(firstOptional);
  const keywords = params.filter((param) => param.keywordOnly);
  const named = [...optional, ...keywords];
  const takesOptions = named.length > 0 || isFactory(schema);
  const optionsType = takesOptions ? options.typeOf(schema, named) : '';
  const needsOptions = keywords.some((param) => !param.optional);

  const parts = required.map((param) => `${param.name}: ${param.type}`);
  for (const param of optional) parts.push(`${param.name}?: ${param.type} | ${optionsType}`);
  if (keywords.length > 0 || (isFactory(schema) && optional.length === 0)) {
    parts.push(`options${needsOptions && optional.length === 0 ? '' : '?'}: ${optionsType}`);
  }
  const all = [`(${parts.join(', ')}): ${result}`];

  if (
    positional.length === 1 &&
    required.length === 1 &&
    /^(Int \| )?readonly Int\[\]( \| null)?$/.test(required[0]!.type)
  ) {
    const [only] = required as [Parameter];
    const rest = isFactory(schema) ? `readonly Int[] | [...Int[], ${optionsType}]` : 'readonly Int[]';
    all.push(`(...${only.name}: ${rest}): ${result}`);
  }
  const last = required.at(-1);
  if (
    last !== undefined &&
    positional.length === required.length &&
    last.type === 'readonly Tensor[]' &&
    form === 'function'
  ) {
    const before = required.slice(0, -1).map((param) => `${param.name}: ${param.type}, `);
    all.push(`(${before.join('')}...${last.name}: readonly Tensor[]): ${result}`);
  }
  // by name from the first argument on that is no tensor: sum(x, { dim: 1 })
  const byName = required.findIndex((param) => !/Tensor/.test(param.type));
  if (byName >= 0 && required.slice(byName).every((param) => !/Tensor/.test(param.type))) {
    const before = required.slice(0, byName).map((param) => `${param.name}: ${param.type}, `);
    const own = `{ ${required
      .slice(byName)
      .map((param) => `${param.key}: ${param.type}`)
      .join('; ')} }`;
    all.push(`(${before.join('')}options: ${own}${takesOptions ? ` & ${optionsType}` : ''}): ${result}`);
  }
  return all;
}
