/**
 * @file Which overload a call means, decided in TypeScript by the kinds of its arguments. Each overload that can take the
 * call has a cost (0 for exact kinds, more for conversions such as a number for a tensor); the cheapest wins, the first
 * of equals.
 */
import { didYouMean, TorchError } from '../base/errors.ts';
import { camelCase } from './bind.ts';
import { type Kind, kindText } from './kind.ts';

/** One parameter of an overload. */
export interface Parameter {
  /** camelCase */
  readonly key: string;
  readonly type: string;
  readonly keywordOnly: boolean;
  readonly hasDefault: boolean;
  /** What each kind of argument costs here; kinds that are absent do not fit. */
  readonly costs: Readonly<Record<Kind, number>>;
}

/** One overload of an operator. */
export interface Overload {
  /** `aten::add.Tensor` */
  readonly fullName: string;
  readonly parameters: readonly Parameter[];
  readonly numPositional: number;
  /** Takes dtype, layout, device and pinMemory, so `requiresGrad` too. */
  readonly isFactory: boolean;
  /** Position of a list that may also be written out: `x.view(2, 3)`; -1 where there is none. */
  readonly spread: number;
  /** The signature as a reader sees it. */
  readonly text: string;
}

const scalarCosts = { i: 0, f: 0, g: 0, b: 0, z: 0, T: 6 };
const baseCosts: Readonly<Record<string, Readonly<Record<Kind, number>>>> = {
  Tensor: { T: 0, i: 3, f: 3, g: 3, b: 3, z: 3 },
  int: { i: 0, g: 0, b: 2 },
  float: { i: 0, f: 0, g: 1, z: 0 },
  bool: { b: 0 },
  Scalar: scalarCosts,
  complex: scalarCosts,
  str: { s: 0, d: 0, v: 0, l: 0, m: 0 },
  ScalarType: { D: 0, d: 0 },
  Device: { v: 0 },
  Layout: { l: 0 },
  MemoryFormat: { m: 0 },
  Generator: { G: 0 },
};

/** What each kind of array costs for a list of a type. */
const listCosts: Readonly<Record<string, Readonly<Record<Kind, number>>>> = {
  int: { I: 0, E: 0 },
  float: { F: 0, I: 0, Z: 1, E: 0 },
  bool: { B: 0, E: 0 },
  Scalar: { I: 0, F: 0, B: 0, Z: 0, E: 0 },
  Tensor: { A: 0, E: 0 },
  'Tensor?': { A: 0, H: 0, E: 0 },
};

const MISSING_NULLABLE = 8;
const costsByType = new Map<string, Readonly<Record<Kind, number>>>();

function costsOf(type: string): Readonly<Record<Kind, number>> {
  let costs = costsByType.get(type);
  if (costs === undefined) {
    costs = computeCosts(type);
    costsByType.set(type, costs);
  }
  return costs;
}

function computeCosts(type: string): Readonly<Record<Kind, number>> {
  if (type.endsWith('?')) return { ...costsOf(type.slice(0, -1)), n: 0 };
  const list = /^(.*)\[(\d*)\]$/.exec(type);
  if (list === null) return baseCosts[type] ?? {};
  const element = list[1]!;
  const costs: Record<Kind, number> = { ...listCosts[element] };
  if (list[2] !== '') {
    for (const [kind, cost] of Object.entries(baseCosts[element] ?? {})) costs[kind] = cost + 1; // int[2] given as 3
  }
  return costs;
}

/** Reads `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)`. */
export function parseOverload(text: string): Overload {
  const open = text.indexOf('(');
  const parameters: Parameter[] = [];
  let keywordOnly = false;
  const inside = text.slice(open + 1, -1);
  for (const part of inside === '' ? [] : inside.split(', ')) {
    if (part === '*') {
      keywordOnly = true;
      continue;
    }
    const space = part.indexOf(' ');
    const equals = part.indexOf('=');
    const name = part.slice(space + 1, equals < 0 ? undefined : equals);
    const type = part.slice(0, space);
    parameters.push({ key: camelCase(name), type, keywordOnly, hasDefault: equals >= 0, costs: costsOf(type) });
  }
  const numPositional = keywordOnly ? parameters.findIndex((parameter) => parameter.keywordOnly) : parameters.length;
  const keys = new Set(parameters.slice(numPositional).map((parameter) => parameter.key));
  return {
    fullName: `aten::${text.slice(0, open)}`,
    parameters,
    numPositional,
    isFactory: ['dtype', 'layout', 'device', 'pinMemory'].every((key) => keys.has(key)),
    spread: spreadPosition(parameters, numPositional),
    text: readable(text.slice(0, open), parameters),
  };
}

/** A list of sizes that is the only positional argument besides self, or a list of tensors that is the last, can be written out. */
function spreadPosition(parameters: readonly Parameter[], numPositional: number): number {
  const last = numPositional - 1;
  const type = parameters[last]?.type ?? '';
  if (type === 'Tensor[]') return last;
  const first = parameters[0];
  const alone = last === 0 || (last === 1 && first?.key === 'self' && first.type === 'Tensor');
  return alone && /^int\[\d*\]\??$/.test(type) ? last : -1;
}

function readable(name: string, parameters: readonly Parameter[]): string {
  const show = ({ key, type, hasDefault }: Parameter): string => `${key}${hasDefault ? '?' : ''}: ${type}`;
  const positional = parameters.filter((parameter) => !parameter.keywordOnly).map(show);
  const named = parameters.filter((parameter) => parameter.keywordOnly).map(show);
  if (named.length > 0) positional.push(`{ ${named.join(', ')} }`);
  return `${camelCase(name.split('.')[0]!)}(${positional.join(', ')})`;
}

/** The kinds of a call: one letter per positional argument, and the kinds of the named ones. */
export interface CallKinds {
  readonly positional: string;
  readonly names: readonly string[];
  readonly named: string;
}

/** An overload that fits, and whether the arguments from `spread` on are one list. */
export interface Choice {
  readonly overload: Overload;
  readonly spreads: boolean;
}

/** The cheapest overload for a call, or nothing when none fits. */
export function chooseOverload(overloads: readonly Overload[], call: CallKinds): Choice | undefined {
  let best: Choice | undefined;
  let bestCost = Infinity;
  for (const overload of overloads) {
    const plain = costOf(overload, call);
    if (plain < bestCost) [best, bestCost] = [{ overload, spreads: false }, plain];
    if (overload.spread < 0) continue;
    const folded = foldSpread(overload, call.positional);
    if (folded === undefined) continue;
    const cost = costOf(overload, { ...call, positional: folded }) + 1;
    if (cost < bestCost) [best, bestCost] = [{ overload, spreads: true }, cost];
  }
  return best;
}

/** The kinds with the arguments from `spread` on made one array, if they can be. */
function foldSpread({ spread, parameters }: Overload, kinds: string): string | undefined {
  const rest = kinds.slice(spread);
  const isTensors = parameters[spread]!.type === 'Tensor[]';
  if (!(isTensors ? /^T+$/ : /^[ig]+$/).test(rest)) return undefined;
  return kinds.slice(0, spread) + (isTensors ? 'A' : 'I');
}

function costOf(overload: Overload, call: CallKinds): number {
  const { parameters } = overload;
  const given = call.positional.length;
  if (given > overload.numPositional) return Infinity;
  let cost = 0;
  let numNamed = 0;
  for (let i = 0; i < parameters.length; i++) {
    const parameter = parameters[i]!;
    let kind = 'u';
    if (i < given) kind = call.positional.charAt(i);
    else {
      const at = call.names.indexOf(parameter.key);
      if (at >= 0) {
        kind = call.named.charAt(at);
        numNamed++;
      }
    }
    if (kind === 'u') {
      if (parameter.hasDefault) continue;
      if (!parameter.type.endsWith('?')) return Infinity;
      cost += MISSING_NULLABLE;
      continue;
    }
    cost += parameter.costs[kind] ?? Infinity;
  }
  const extra = overload.isFactory && call.names.includes('requiresGrad') ? 1 : 0;
  return numNamed + extra === call.names.length ? cost : Infinity;
}

/** The error of a call that no overload takes: what was given, and what is possible. */
export function noOverload(name: string, overloads: readonly Overload[], call: CallKinds): TorchError {
  const given = [...call.positional].map(kindText);
  if (call.names.length > 0)
    given.push(`{ ${call.names.map((key, i) => `${key}: ${kindText(call.named.charAt(i))}`).join(', ')} }`);
  const candidates = overloads.map((overload) => `\n  ${overload.text}`).join('');
  const known = new Set(overloads.flatMap((overload) => overload.parameters.map((parameter) => parameter.key)));
  if (overloads.some((overload) => overload.isFactory)) known.add('requiresGrad');
  const unknown = call.names.find((key) => !known.has(key));
  if (unknown !== undefined) {
    return new TorchError(
      'UNKNOWN_OPTION',
      `${name}: unknown option '${unknown}'${didYouMean(unknown, known)}; there are:${candidates}`,
    );
  }
  return new TorchError('NO_OVERLOAD', `${name}: no overload takes (${given.join(', ')}); there are:${candidates}`);
}
