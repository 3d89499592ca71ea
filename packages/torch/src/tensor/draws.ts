/**
 * @file Random numbers by name: while a context is open, what operators draw in this thread is a function of its seed, step and
 * microbatch, of the layer that runs (its name, the number of its call, the number of the draw in it) and of the element; not
 * of what was drawn before, or on which rank.
 */
import { native } from '../addon/addon.ts';
import type { Tensor } from './tensor.ts';

/** A name as two halves of 64 bits. */
export interface DrawName {
  readonly low: number;
  readonly high: number;
}

/** What draws are made for. */
export interface DrawPlace {
  readonly seed: bigint;
  readonly step: number;
  /** Draws of different kinds have nothing in common: initial values, training, evaluation. */
  readonly kind: number;
  readonly microbatch: number;
}

/** The layer that runs: where in it the next draw stands is kept by the addon. */
interface Frame extends DrawName {
  readonly call: number;
}

interface Context {
  readonly place: DrawPlace;
  /** How often each layer was called. */
  readonly calls: Map<DrawName, number>;
  /** Parameters that are being filled, by their names. */
  readonly parameters: ReadonlyMap<Tensor, DrawName>;
  frame: Frame;
}

const root: Frame = { low: 0, high: 0, call: 0 };
let active: Context | null = null;

/** The 64 bits of a name: two hashes of its characters. */
export function drawName(name: string): DrawName {
  let [low, high] = [0x811c9dc5, 0x9747b28c];
  for (let i = 0; i < name.length; i++) {
    const code = name.charCodeAt(i);
    low = Math.imul(low ^ code, 0x01000193);
    high = Math.imul(high ^ code, 0x5bd1e995);
    high ^= high >>> 15;
  }
  return { low: low >>> 0, high: high >>> 0 };
}

/** Whether this thread draws by name now. */
export function drawsByName(): boolean {
  return active !== null;
}

/** Runs a function whose draws are made by name. */
export function withDraws<T>(place: DrawPlace, body: () => T, parameters?: ReadonlyMap<Tensor, DrawName>): T {
  const context: Context = { place, calls: new Map(), parameters: parameters ?? new Map(), frame: root };
  return inContext(context, 0, body);
}

/** Runs a function as a call of a layer. */
export function inLayer<T>(name: DrawName, body: () => T): T {
  const context = active;
  if (context === null) return body();
  const call = context.calls.get(name) ?? 0;
  context.calls.set(name, call + 1);
  return inFrame(context, { low: name.low, high: name.high, call }, 0, body);
}

/** Runs a function as a part of a call of a layer, from its draw of a number on. */
export function inCall<T>(name: DrawName, at: { readonly call: number; readonly draw: number }, body: () => T): T {
  const context = active;
  if (context === null) return body();
  return inFrame(context, { low: name.low, high: name.high, call: at.call }, at.draw, body);
}

/** Runs a function that fills a parameter: what it draws besides is drawn by the parameter's name, too. */
export function whileFilling<T>(target: Tensor, body: () => T): T {
  const name = active?.parameters.get(target);
  return name === undefined ? body() : inCall(name, { call: 1, draw: 0 }, body);
}

/** What draws now, to run a function under it later; null where nothing is drawn by name. */
export function saveDraws(): (<T>(body: () => T) => T) | null {
  const context = active;
  if (context === null) return null;
  const { frame } = context;
  const draw = setFrame(frame, 0);
  setFrame(frame, draw);
  const calls = new Map(context.calls);
  return (body) => inContext({ ...context, calls: new Map(calls), frame }, draw, body);
}

/** Runs a function in which draws are what they are without names. */
export function withoutDraws<T>(body: () => T): T {
  return active === null ? body() : inContext(null, 0, body);
}

function setFrame({ low, high, call }: Frame, draw: number): number {
  return native.setDrawScope(low, high, call, draw);
}

function inFrame<T>(context: Context, frame: Frame, draw: number, body: () => T): T {
  const before = context.frame;
  const drawBefore = setFrame(frame, draw);
  context.frame = frame;
  try {
    return body();
  } finally {
    context.frame = before;
    setFrame(before, drawBefore);
  }
}

function inContext<T>(context: Context | null, draw: number, body: () => T): T {
  const before = active;
  const drawBefore = before === null ? 0 : setFrame(before.frame, 0);
  open(context, draw);
  try {
    return body();
  } finally {
    open(before, drawBefore);
  }
}

function open(context: Context | null, draw: number): void {
  active = context;
  if (context === null) {
    native.endDraws();
    return;
  }
  const { seed, step, kind, microbatch } = context.place;
  native.beginDraws(seed, step, kind, microbatch);
  for (const [parameter, { low, high }] of context.parameters) native.nameDraws(parameter.handle, low, high);
  setFrame(context.frame, draw);
}
