/** @file Messages between ranks that train with `trainLoop` and their launcher: which ranks are ready, which generation begins, how far it is. */

/** Marks a message as one of these: scripts may send messages of their own. */
const MARK = 'pipewright.replacement';

/** From a rank to its launcher. Times are those of the machine's steady clock. */
export type RankNotice =
  /** It waits for the next generation; `finished`: all its steps are done. */
  | {
      readonly kind: 'ready';
      /** The generation it was in before; -1 where it has just begun. */
      readonly generation: number;
      /** The step that was under way, if one was. */
      readonly step: number | null;
      readonly finished: boolean;
      readonly atMs: number;
      /** Why it left the generation before, in one line. */
      readonly why: string;
    }
  /** It has connected and its state is that of the beginning of `step`; `from` says where a new rank has it from. */
  | {
      readonly kind: 'restored';
      readonly generation: number;
      readonly step: number;
      readonly from: string;
      readonly atMs: number;
    }
  /** All steps that were begun before the loss are done. */
  | { readonly kind: 'repeated'; readonly generation: number; readonly atMs: number };

/** From the launcher to a rank. */
export type LauncherOrder =
  /** Connect as this generation. Processes meet at the port, with the secret; threads in the group. */
  | {
      readonly kind: 'generation';
      readonly number: number;
      readonly masterPort?: number | undefined;
      readonly secret?: string | undefined;
      readonly group?: string | undefined;
    }
  /** All ranks have done all steps. */
  | { readonly kind: 'end' };

/** The environment variable that is set where the launcher starts lost ranks again. */
export const REPLACES = 'PIPEWRIGHT_REPLACES';

/** Marks a message as one of these. */
export function marked<T extends RankNotice | LauncherOrder>(message: T): object {
  return { mark: MARK, message };
}

/** The message in what was received; undefined where it is none of these. */
export function unmarked<T extends RankNotice | LauncherOrder>(received: unknown): T | undefined {
  if (typeof received !== 'object' || received === null || !('mark' in received) || received.mark !== MARK)
    return undefined;
  return (received as unknown as { readonly message: T }).message;
}
