/** @file The TypeScript of the hot operators: checks that a call has the simple form, and calls the addon. */
import type { HotForm } from './hot-ops.ts';
import type { Schema, SchemaArgument } from './schema.ts';

interface Checked {
  /** Conditions on the arguments. */
  readonly conditions: string[];
  /** What the addon is given. */
  readonly values: string[];
}

function defaultLiteral(arg: SchemaArgument): string {
  const text = arg.default!;
  if (text === 'True' || text === 'False') return text.toLowerCase();
  return String(Number(text));
}

/** Conditions and values of one form; argument `i` is called `names[i]`. */
function check(form: HotForm, schema: Schema, names: readonly string[], isMethod: boolean): Checked {
  const min = form.min ?? form.args.length;
  const conditions: string[] = [];
  const values: string[] = [];
  [...form.args].forEach((code, i) => {
    const name = names[i]!;
    const arg = schema.args[i]!;
    const optional = i >= min;
    const known = isMethod && i === 0;
    switch (code) {
      case 'T':
        if (!known) conditions.push(`${name} instanceof Tensor`);
        values.push(known ? 'this.h' : `${name}.h`);
        break;
      case 't':
        conditions.push(`(${name} === undefined || ${name} === null || ${name} instanceof Tensor)`);
        values.push(`handleOrZero(${name})`);
        break;
      case 'N':
        conditions.push(`typeof ${name} === 'number'`);
        values.push(name);
        break;
      case 'i':
      case 'f':
      case 'b': {
        const type = code === 'b' ? 'boolean' : 'number';
        conditions.push(
          optional ? `(${name} === undefined || typeof ${name} === '${type}')` : `typeof ${name} === '${type}'`,
        );
        values.push(optional ? `${name} === undefined ? ${defaultLiteral(arg)} : ${name}` : name);
        break;
      }
      case 'I': {
        const helper = /\[\d+\]/.test(arg.type) ? 'listOrOne' : 'list';
        conditions.push(`(count = ${helper}(${name})) >= 0`);
        values.push('count');
        break;
      }
      case 'A':
        conditions.push(`(count = tensors(${name})) >= 0`);
        values.push('count');
        break;
      default:
        throw new Error(`hot-typescript: unknown letter ${code}`);
    }
  });
  // filling the shared list comes last, so that nothing is written for a call that goes the other way
  conditions.sort((a, b) => Number(a.startsWith('(count')) - Number(b.startsWith('(count')));
  return { conditions, values };
}

/** How the result of the addon becomes what the caller gets. */
function result(schema: Schema, call: string, self: string): string {
  if (schema.inPlace) return `{\n      ${call};\n      return ${self};\n    }`;
  if (schema.returns[0] === 'Tensor[]') return `return (${call} as number[]).map(adopt);`;
  return `return adopt(${call} as number);`;
}

const longestSpread = 6;

/** Whether the list may be written out, as in `x.view(2, 3)`. */
function canSpread(form: HotForm, schemas: ReadonlyMap<string, Schema>): boolean {
  return form.args === 'TI' && schemas.get(form.op)?.args[1]?.type === 'int[]';
}

function printFunction(forms: readonly HotForm[], schemas: ReadonlyMap<string, Schema>, isMethod: boolean): string {
  const name = forms[0]!.name;
  const offset = isMethod ? 1 : 0;
  const spreads = isMethod && forms.some((form) => canSpread(form, schemas));
  const most = spreads ? 1 + longestSpread : Math.max(...forms.map((form) => form.args.length));
  const names = Array.from({ length: most }, (_, i) => (isMethod && i === 0 ? 'this' : `a${i}`));
  const branches: string[] = [];
  let usesList = false;
  for (const form of forms) {
    const schema = schemas.get(form.op)!;
    const { conditions, values } = check(form, schema, names, isMethod);
    const max = form.args.length - offset;
    const min = (form.min ?? form.args.length) - offset;
    const counts = min === max ? `n === ${max}` : min === 0 ? `n <= ${max}` : `n >= ${min} && n <= ${max}`;
    const test = [counts, ...conditions].join(' && ');
    usesList ||= test.includes('count =');
    branches.push(`    if (${test}) ${result(schema, `hot${pascal(form.op)}(${values.join(', ')})`, names[0]!)}`);
    if (isMethod && canSpread(form, schemas)) {
      const written = `spread(n, ${names.slice(1).join(', ')})`;
      branches.push(
        `    if ((count = ${written}) > 0) ${result(schema, `hot${pascal(form.op)}(this.h, count)`, 'this')}`,
      );
    }
  }
  const own = names.slice(offset).map((each) => `${each}?: unknown`);
  const params = isMethod ? ['this: Tensor', ...own] : own;
  return `  ${name}(${params.join(', ')}): unknown {
    const n = recorder === null ? arguments.length : watched;
${usesList ? '    let count = 0;\n' : ''}${branches.join('\n')}
    return Reflect.apply(slow${pascal(name)}${isMethod ? 'Method' : ''}, ${isMethod ? 'this' : 'undefined'}, arguments);
  },
`;
}

function pascal(name: string): string {
  return name
    .replaceAll(/(^|\.)([a-z])/g, (_, dot: string, letter: string) => (dot === '' ? '' : '_') + letter.toUpperCase())
    .replaceAll('.', '_');
}

/** The whole of src/generated/hot-ops.ts. */
export function hotTypescriptFile(
  forms: readonly HotForm[],
  schemas: ReadonlyMap<string, Schema>,
  banner: string,
): string {
  const byName = new Map<string, HotForm[]>();
  for (const form of forms) byName.set(form.name, [...(byName.get(form.name) ?? []), form]);
  const isMethod = (list: readonly HotForm[]): boolean => schemas.get(list[0]!.op)?.args[0]?.name === 'self';
  const natives = forms.map((form) => `const hot${pascal(form.op)} = hot['${form.op}'] as Hot;\n`);
  const slow = [...byName].map(([name, list]) => {
    const method = isMethod(list) ? `const slow${pascal(name)}Method = genericMethod('${name}');\n` : '';
    return `${method}const slow${pascal(name)} = genericFunction('${name}');\n`;
  });
  const methods = [...byName.values()].filter(isMethod).map((list) => printFunction(list, schemas, true));
  const functions = [...byName.values()].map((list) => printFunction(list, schemas, false));
  return `${banner}import { native } from '../addon/addon.ts';
import { handleOrZero, list, listOrOne, spread, tensors } from '../op/hot.ts';
import { genericFunction, genericMethod } from '../op/operator.ts';
import { recorder } from '../tensor/recorder.ts';
import { Tensor } from '../tensor/tensor.ts';

type Hot = (...values: unknown[]) => unknown;
const { hot } = native;
const { adopt } = Tensor;
/** More arguments than any short form has: while somebody watches, every call takes the general way. */
const watched = 99;

${natives.join('')}
${slow.join('')}
/** Methods by name. */
export const hotMethods: Readonly<Record<string, (this: Tensor, ...args: never[]) => unknown>> = {
${methods.join('')}};

/** Functions by name. */
export const hotFunctions: Readonly<Record<string, (...args: never[]) => unknown>> = {
${functions.join('')}};
`;
}
