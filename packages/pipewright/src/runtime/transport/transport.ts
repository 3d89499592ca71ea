/**
 * @file How values move between ranks. A receive is posted where it stands in the row and taken by the action that computes
 * with it; a send hands its tensors over and returns. What waits for what (the host, a stream of the GPU) is the transport's
 * own affair: after `wait` whatever is computed next may use the tensors, and after `send` they may be freed.
 */
import type { distributed, Tensor } from '@pipewright/torch';

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

/** A receive that was posted. */
export interface PostedReceive {
  /** Gives what came, fresh leaves of the autograd graph. Called once. */
  wait(): Payload;
}

/** Moves payloads between this rank and the others. Messages between two ranks are posted and sent in the order of the row. */
export interface Transport {
  /**
   * Posts the receive of a message and returns at once. `like` has tensors of the shapes and types that will come, where this
   * end knows them: gradients are like the values that were sent.
   */
  post(envelope: Envelope, like?: readonly Tensor[]): PostedReceive;
  /** Sends a message. The tensors are not changed afterwards, and may be freed. */
  send(envelope: Envelope, payload: Payload): void;
  /** A step or an evaluation begins. */
  beginStep?(training: boolean): void;
  /** The step has ended, or failed: what is still posted will not be taken. */
  endStep?(failed: boolean): void;
  /** Frees what is kept between steps. */
  dispose?(): void;
}
