/**
 * @file The runs of a trace with free sizes: some from which the expressions of sizes are found, and others, at sizes that differ
 * from all of those, which they are checked with.
 */
import { TorchError } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { DimRange } from '../graph/graph.ts';
import { type Recording, recordRun, type TraceSubject } from './run.ts';
import type { Sizes } from './sizes.ts';
import { mergeRuns } from './symbols.ts';

/** A model recorded with free sizes. */
export interface SizedRecording {
  readonly recording: Recording;
  /** The sizes that the recording holds for, by symbol. */
  readonly ranges: Readonly<Record<string, DimRange>>;
}

/** One run: the sizes, and what the model did there. */
interface Run {
  readonly sizes: Sizes;
  readonly recording: Recording;
}

/**
 * Records a model at several sizes and merges the runs. The runs that expressions are found from: the example's sizes and each
 * symbol doubled alone. They are checked at sizes a little larger, at far larger ones, and at 1. A model that does something
 * else below a size holds from there on; every other difference is an error.
 */
export function recordSizes(subject: TraceSubject, example: Recording): SizedRecording {
  return new SizeRuns(subject, example).record();
}

class SizeRuns {
  private readonly subject: TraceSubject;
  private readonly symbols: readonly string[];
  private readonly runs: Run[];
  /** How the last run that was tried differs from the others. */
  private problem: unknown = null;

  constructor(subject: TraceSubject, example: Recording) {
    this.subject = subject;
    this.symbols = Object.keys(subject.inputs.sizes);
    this.runs = [{ sizes: subject.inputs.sizes, recording: example }];
  }

  record(): SizedRecording {
    for (const one of this.symbols)
      this.runs.push(this.needed(this.sizesFrom((size, _, symbol) => (symbol === one ? 2 * size : size))));
    this.checkLarger();
    const ones = this.sizesFrom(() => 1);
    const isNew = this.runs.every(({ sizes }) => this.symbols.some((symbol) => sizes[symbol] !== 1));
    const run = isNew ? this.tryRun(ones) : null;
    if (run === null) return { recording: mergeRuns(this.runs), ranges: rangesFrom(ones) };
    const merged = this.mergedWith(run);
    if (merged !== null) return { recording: merged, ranges: rangesFrom(ones) };
    const recording = mergeRuns(this.runs); // an error here is not about the size 1
    return { recording, ranges: rangesFrom(this.smallest()) };
  }

  /** Adds runs that are a little larger (or, where a model wants multiples of something, multiples) and far larger. */
  private checkLarger(): void {
    const above = this.tryRun(this.sizesFrom((size, i) => size + i + (size === 1 + i ? 2 : 1))); // not the double
    if (above === null) {
      this.runs.push(this.needed(this.sizesFrom((size, i) => size * primeAfter(2, i))));
      if (this.subject.onMeta) this.checkFar([this.sizesFrom((size, i) => size * primeAfter(28, i))]);
      return;
    }
    this.add(above);
    const near = this.sizesFrom((size, i) => primeAfter(2 * size, i));
    const far = this.sizesFrom((size, i) => primeAfter(Math.max(96, 3 * size), i));
    this.checkFar(this.subject.onMeta ? [far, near] : [near]); // what is computed must not take many times the example's memory
  }

  /** Adds the first of the runs that works. None has to: a table of positions may end before. */
  private checkFar(choices: readonly Sizes[]): void {
    for (const sizes of choices) {
      const run = this.tryRun(sizes);
      if (run !== null) return this.add(run);
    }
  }

  private add(run: Run | PipelineError): void {
    if (run instanceof PipelineError) throw run;
    this.runs.push(run);
  }

  /** The smallest sizes from which on the model does what it does with the example. */
  private smallest(): Sizes {
    const { sizes } = this.subject.inputs;
    const found = { ...sizes };
    for (const symbol of this.symbols) {
      let bad = this.symbols.length === 1 ? 1 : 0; // 1 alone is known not to agree
      let good = sizes[symbol]!;
      for (let at = bad + 1; good - bad > 1; at = (bad + good) >>> 1) {
        if (this.agrees({ ...sizes, [symbol]: at })) good = at;
        else bad = at;
      }
      found[symbol] = good;
    }
    const moved = this.symbols.filter((symbol) => found[symbol] !== sizes[symbol]);
    if (moved.length > 1 && !this.agrees(found)) throw this.problem;
    return found;
  }

  private agrees(sizes: Sizes): boolean {
    const run = this.tryRun(sizes);
    return run !== null && this.mergedWith(run) !== null;
  }

  /** All runs and one more as one; null where it differs from the others. */
  private mergedWith(run: Run | PipelineError): Recording | null {
    try {
      if (run instanceof PipelineError) throw run;
      return mergeRuns([...this.runs, run]);
    } catch (error) {
      if (!(error instanceof PipelineError)) throw error;
      this.problem = error;
      return null;
    }
  }

  /** A run that must work. */
  private needed(sizes: Sizes): Run {
    try {
      return { sizes, recording: recordRun(this.subject, sizes) };
    } catch (error) {
      if (!(error instanceof TorchError)) throw error;
      const at = Object.entries(sizes).map(([symbol, size]) => `${symbol} ${size}`);
      throw new PipelineError(
        'TRACE_SIZES',
        `trace: the model works with the example, but not at ${at.join(' and ')}: ${error.message}; make it independent of the size, or fix the sizes with dynamicShapes: false`,
        {},
        { cause: error },
      );
    }
  }

  /** A run that the model may refuse: null. What cannot be traced is an error that the example did not have. */
  private tryRun(sizes: Sizes): Run | PipelineError | null {
    try {
      return { sizes, recording: recordRun(this.subject, sizes) };
    } catch (error) {
      return error instanceof PipelineError ? error : null;
    }
  }

  private sizesFrom(change: (size: number, i: number, symbol: string) => number): Sizes {
    const { sizes } = this.subject.inputs;
    return Object.fromEntries(this.symbols.map((symbol, i) => [symbol, change(sizes[symbol]!, i, symbol)]));
  }
}

function rangesFrom(sizes: Sizes): Record<string, DimRange> {
  return Object.fromEntries(
    Object.entries(sizes).map(([symbol, min]) => [symbol, { min, max: null, ...(min > 1 ? { strict: true } : {}) }]),
  );
}

/** The `i`-th prime above a number, counted from 0. */
function primeAfter(number: number, i: number): number {
  let found = number + 1;
  for (let left = i; !isPrime(found) || left-- > 0; ) found++;
  return found;
}

function isPrime(number: number): boolean {
  for (let divisor = 2; divisor * divisor <= number; divisor++) if (number % divisor === 0) return false;
  return number > 1;
}
