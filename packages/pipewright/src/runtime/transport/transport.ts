/**
 * @file How values move between ranks. A receive is posted where it stands in the row and taken by the action that computes
 * with it; a send hands its tensors over and returns. What waits for what (the host, a stream of the GPU) is the transport's
 * own affair: after `wait` whatever is computed next may use the tensors, and after `send` they may be freed.
 */
import type { distributed, GradientTarget, Tensor } from '@pipewright/torch';
import type { StepCall } from './call.ts';

/** One message, by what both ends know it by. */
export interface Envelope {
  /** The rank at the other end. */
  readonly peer: number;
  /** Different for all messages of a step, the same at both ends and in every step. */
  readonly tag: number;
}

/** What a message carries. */
export interface Payload {
  /** Null where there is none. */
  readonly tensors: readonly (Tensor | null)[];
  /** A small JSON value beside the tensors. */
  readonly header?: distributed.Json | undefined;
}

/** What a step depends on, in words, on this rank. */
export interface StepSignature {
  /** What decides which messages there are: training or not, which parameters are trained. */
  readonly kind: string;
  /** What all ranks must call alike: see `callKind`. */
  readonly call: number;
  /** The shapes, types and structure of the inputs. */
  readonly inputs: string;
  /** Empty where this rank would capture the step, else why it cannot; undefined where nobody asked for it. */
  readonly capture?: string | undefined;
}

/** What the ranks found out about a step together. */
export interface Agreement {
  /** The same on all ranks, and in every step with the same signatures of all. */
  readonly key: string;
  /** Whether nothing but tensors will be exchanged, so that the step can be captured. */
  readonly isKnown: boolean;
  /** Why not all ranks would capture; null where they would. */
  readonly captureProblem: string | null;
}

/** What records a step, so that one call repeats it: `cuda.CudaGraph`, or one that several ranks record together. */
export interface StepGraph {
  /** Runs `body` once and records what it does on the GPU; returns what it returns. */
  capture<T>(body: () => T, options: { readonly warmup: number }): T;
  /** Does the recorded work again, in the current stream. */
  replay(): void;
  /** Forgets the recording and frees its memory. */
  reset(): void;
}

/** A receive that was posted. */
export interface PostedReceive {
  /** Gives what came, fresh leaves of the autograd graph. Called once. */
  wait(): Payload;
}

/** Moves payloads between this rank and the others. Messages between two ranks are posted and sent in the order of the row. */
export interface Transport {
  /** How messages go, in a few words: the same on all ranks. */
  readonly way: string;
  /** Whether a rank can send a refusal in the place of a message, so that a step is refused by all and the next one runs. */
  readonly carriesRefusals: boolean;
  /**
   * Posts the receive of a message and returns at once. `like` has the shapes and types that will come, where this
   * end knows them: gradients are like the values that were sent.
   */
  post(envelope: Envelope, like?: readonly GradientTarget[]): PostedReceive;
  /** Sends a message. The tensors are not changed afterwards, and may be freed. */
  send(envelope: Envelope, payload: Payload): void;
  /**
   * Compares with all other ranks what a step is given: for transports that remember. Every rank, before `beginStep`. Throws on
   * all ranks where they make different calls.
   */
  agree?(signature: StepSignature): Agreement;
  /** The first problem that a rank has; null where none has one. Every rank. */
  compare?(problem: string | null): string | null;
  /** A step or an evaluation begins. */
  beginStep?(call: StepCall): void;
  /** What records a step of all ranks as one graph; where there is none, every rank records its own. Every rank. */
  makeGraph?(): StepGraph;
  /** The messages of a captured step are on their way again. */
  replayed?(): void;
  /** A capture has failed: what was sent and posted in it never happens. */
  forget?(): void;
  /** The step has ended, or failed: what is still posted will not be taken. */
  endStep?(failed: boolean): void;
  /** Frees what is kept between steps. */
  dispose?(): void;
}
