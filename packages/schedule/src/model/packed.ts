/** @file The packed form of actions: one 32-bit word per cell, composites in a side table. */

import { type Action, type ActionKind, action, actionKinds, overlap } from './action.ts';
import { ScheduleError } from './errors.ts';

/**
 * Kind codes, the low four bits of a word. A word of 0 is a bubble. `Composite` marks a word whose upper bits are an
 * index into the schedule's `CompositeTable`.
 */
export const Code = {
  Bubble: 0,
  F: 1,
  I: 2,
  W: 3,
  B: 4,
  Unshard: 5,
  Reshard: 6,
  ReduceGrad: 7,
  SendF: 8,
  RecvF: 9,
  SendB: 10,
  RecvB: 11,
  OverlapFB: 12,
  Composite: 15,
} as const;

const codeOfKind: ReadonlyMap<string, number> = new Map(actionKinds.map((kind, i) => [kind, i + 1]));

/**
 * The code of a kind.
 * @example codeOf('F') // 1
 */
export function codeOf(kind: ActionKind): number {
  return codeOfKind.get(kind)!;
}

/**
 * The kind of a code (not for bubbles and composites).
 * @example kindOf(8) // 'SEND_F'
 */
export function kindOf(code: number): ActionKind {
  return actionKinds[code - 1]!;
}

const codeMask = 15;
const codeBits = 4;

/**
 * The code of a word: what is done.
 * @example wordCode(layout.pack(Code.F, 2, 0)) // Code.F
 */
export function wordCode(word: number): number {
  return word & codeMask;
}

/** Whether a word stands for several overlapped actions. */
export function isComposite(word: number): boolean {
  return (word & codeMask) === Code.Composite;
}

/** Whether a word is a send or a receive. */
export function isMessage(word: number): boolean {
  const code = word & codeMask;
  return code >= Code.SendF && code <= Code.RecvB;
}

/** Whether an order has sends or receives. */
export function hasMessages(rows: readonly Int32Array[]): boolean {
  for (const row of rows) for (let i = 0; i < row.length; i++) if (isMessage(row[i]!)) return true;
  return false;
}

/** Whether a code is of an action of a stage as a whole: UNSHARD, RESHARD or REDUCE_GRAD. */
export function isCollectiveCode(code: number): boolean {
  return code >= Code.Unshard && code <= Code.ReduceGrad;
}

/** Whether the code of a message is that of a send. */
export function isSendCode(code: number): boolean {
  return code === Code.SendF || code === Code.SendB;
}

/** The receive that a send becomes, and the other way round, at the same stage: the codes differ in the lowest bit. */
function otherEnd(word: number): number {
  return word ^ 1;
}

/** The same stage and microbatch with another code. */
export function withCode(word: number, code: number): number {
  return (word & ~codeMask) | code;
}

/** Whether two plain words are of the same stage and microbatch. */
export function samePair(a: number, b: number): boolean {
  return a >>> codeBits === b >>> codeBits;
}

/** The stage of a plain word; `shift` is the layout's `stageShift`. */
function stageIn(word: number, shift: number): number {
  return word >>> shift;
}

/** The microbatch of a plain word counted from 1, 0 for none; `mask` is the layout's `microbatchMask`. */
function fieldIn(word: number, mask: number): number {
  return (word >>> codeBits) & mask;
}

/** A plain word moved by a number of stages; `shift` is the layout's `stageShift`. */
function movedIn(word: number, stages: number, shift: number): number {
  return (word + (stages << shift)) | 0;
}

/** The codes and functions of inner loops. A module that destructures them has constants, which the engine inlines without a check. */
export const bits: {
  readonly Code: typeof Code;
  readonly wordCode: typeof wordCode;
  readonly isComposite: typeof isComposite;
  readonly isMessage: typeof isMessage;
  readonly otherEnd: typeof otherEnd;
  readonly withCode: typeof withCode;
  readonly stageIn: typeof stageIn;
  readonly fieldIn: typeof fieldIn;
  readonly movedIn: typeof movedIn;
} = { Code, wordCode, isComposite, isMessage, otherEnd, withCode, stageIn, fieldIn, movedIn };

const freeBits = 28;
const usualBits = 14;

/**
 * How a word divides: 4 bits of kind, then microbatch + 1 (0: none), then the stage. The two fields share 28 bits;
 * normally 14 each (stages up to 16,383, microbatches up to 16,382), otherwise the microbatch gets what it needs and the
 * stage the rest. Schedules beyond 2^28 (stage, microbatch) pairs are refused with PACKING_RANGE.
 * @example const l = Layout.for(4, 8); l.stage(l.pack(Code.F, 2, 0)) // 2
 */
export class Layout {
  /** For `stageIn` and `fieldIn`: inner loops keep them in variables, which is a tenth faster than the methods. */
  readonly stageShift: number;
  readonly microbatchMask: number;
  readonly maxStage: number;
  readonly maxMicrobatch: number;

  private constructor(microbatchBits: number) {
    this.stageShift = codeBits + microbatchBits;
    this.microbatchMask = 2 ** microbatchBits - 1;
    this.maxStage = 2 ** (freeBits - microbatchBits) - 1;
    this.maxMicrobatch = 2 ** microbatchBits - 2;
  }

  /** The layout that holds stages up to `maxStage` and microbatches up to `maxMicrobatch`; the same for the same need. */
  static holding(maxStage: number, maxMicrobatch: number): Layout {
    const stageBits = Math.max(1, bitsFor(maxStage));
    const microbatchBits = bitsFor(maxMicrobatch + 1);
    if (stageBits + microbatchBits > freeBits) {
      throw new ScheduleError(
        'PACKING_RANGE',
        `Schedule: stage ${maxStage} and microbatch ${maxMicrobatch} need ${stageBits + microbatchBits} bits, a cell holds ${freeBits}; use fewer stages or microbatches`,
        { maxStage, maxMicrobatch },
      );
    }
    const bits =
      microbatchBits <= usualBits && stageBits <= usualBits
        ? usualBits
        : Math.max(microbatchBits, freeBits - Math.max(stageBits, usualBits));
    let layout = layouts.get(bits);
    if (layout === undefined) layouts.set(bits, (layout = new Layout(bits)));
    return layout;
  }

  /** The layout of a schedule with that many stages and microbatches. */
  static for(stages: number, microbatches: number): Layout {
    return Layout.holding(Math.max(0, stages - 1), Math.max(0, microbatches - 1));
  }

  /** A word; `microbatch` -1 is none. The caller keeps to `maxStage` and `maxMicrobatch`. */
  pack(code: number, stage: number, microbatch: number): number {
    return code | ((microbatch + 1) << codeBits) | (stage << this.stageShift);
  }

  /** The stage of a plain word. */
  stage(word: number): number {
    return word >>> this.stageShift;
  }

  /** The microbatch of a plain word; -1 is none. */
  microbatch(word: number): number {
    return ((word >>> codeBits) & this.microbatchMask) - 1;
  }

  /** The microbatch of a plain word counted from 1; 0 is none. */
  field(word: number): number {
    return fieldIn(word, this.microbatchMask);
  }

  /** A plain word moved by a number of stages. */
  shifted(word: number, stages: number): number {
    return movedIn(word, stages, this.stageShift);
  }

  /** The word at the other end of a message, at the stage given. */
  counterpart(word: number, stage: number): number {
    return movedIn(otherEnd(word), stage - this.stage(word), this.stageShift);
  }

  /** Whether a stage and a microbatch fit. */
  holds(stage: number, microbatch: number): boolean {
    return stage <= this.maxStage && microbatch <= this.maxMicrobatch;
  }

  /** A plain word of this layout in another one. */
  translate(word: number, to: Layout): number {
    return (word & codeMask) === Code.Bubble || isComposite(word)
      ? word
      : to.pack(wordCode(word), this.stage(word), this.microbatch(word));
  }
}

const layouts = new Map<number, Layout>();

function bitsFor(value: number): number {
  return value <= 0 ? 0 : Math.floor(Math.log2(value)) + 1;
}

/**
 * Composites of one schedule. `leaves[starts[i] .. starts[i + 1] - 1]` are the plain words of composite `i`, nested ones
 * flattened: all that passes need. `codes[i]` is its own kind.
 */
export class CompositeTable {
  readonly codes: number[] = [];
  readonly starts: number[] = [0];
  readonly leaves: number[] = [];
  /** Direct parts of the composites that hold composites. */
  private readonly nested: Map<number, readonly number[]> = new Map();

  /** The code of a composite word's own kind. */
  codeOf(word: number): number {
    return this.codes[word >>> codeBits]!;
  }

  /** Adds a composite of the given kind over part words (plain or composite); returns its word. */
  add(parts: readonly number[], code: number = Code.OverlapFB): number {
    const index = this.codes.length;
    if (parts.some((word) => isComposite(word))) this.nested.set(index, [...parts]);
    for (const word of parts) for (const leaf of this.leavesOf(word)) this.leaves.push(leaf);
    this.codes.push(code);
    this.starts.push(this.leaves.length);
    return Code.Composite | (index << codeBits);
  }

  /** The plain words of a word: the leaves of a composite, the word itself, nothing for a bubble. */
  leavesOf(word: number): readonly number[] {
    if (word === 0) return [];
    if (!isComposite(word)) return [word];
    const index = word >>> codeBits;
    return this.leaves.slice(this.starts[index]!, this.starts[index + 1]!);
  }

  /** The direct parts of a composite word, composites unflattened. */
  partsOf(word: number): readonly number[] {
    return this.nested.get(word >>> codeBits) ?? this.leavesOf(word);
  }

  /** Kind and direct parts of every composite: added to an empty table in this order, they have the same words. */
  entries(): [code: number, parts: readonly number[]][] {
    return this.codes.map((code, index) => [code, this.partsOf(Code.Composite | (index << codeBits))]);
  }

  /** Rewrites all words into another layout, in place. */
  translate(from: Layout, to: Layout): void {
    for (let i = 0; i < this.leaves.length; i++) this.leaves[i] = from.translate(this.leaves[i]!, to);
    for (const [index, parts] of this.nested)
      this.nested.set(
        index,
        parts.map((part) => from.translate(part, to)),
      );
  }

  /** Copies a composite of another schedule into this table and returns its word here. */
  adopt(word: number, from: CompositeTable, layouts: { readonly from: Layout; readonly to: Layout }): number {
    if (!isComposite(word)) return layouts.from.translate(word, layouts.to);
    return this.add(
      from.partsOf(word).map((part) => this.adopt(part, from, layouts)),
      from.codeOf(word),
    );
  }
}

/**
 * The action of a word; null for a bubble.
 * @example unpack(word, schedule.layout, schedule.composites)
 */
export function unpack(word: number, layout: Layout, composites: CompositeTable): Action | null {
  const code = wordCode(word);
  if (code === Code.Bubble) return null;
  if (code === Code.Composite) {
    const parts = composites.partsOf(word).map((part) => unpack(part, layout, composites)!);
    return overlap(parts, kindOf(composites.codeOf(word)));
  }
  const microbatch = layout.microbatch(word);
  return action(kindOf(code), layout.stage(word), microbatch < 0 ? null : microbatch);
}
