/** @file The messages between a rank and its launcher: that the rank is ready, and which generation begins. */
import { openSync, readSync } from 'node:fs';
import { getEnvironmentData, parentPort } from 'node:worker_threads';
import { distributed } from '@pipewright/torch';
import { steadyMs } from '../base/steady-clock.ts';
import { type LauncherOrder, marked, type RankNotice, REPLACES, unmarked } from '../launch/replacement/messages.ts';
import { generationWord, STATUS_FILE, STATUS_KEY } from '../status/layout.ts';

/** A rank's connection with a launcher that starts lost ranks again. */
export class LauncherLink {
  private readonly orders: LauncherOrder[] = [];
  private wake: (() => void) | undefined;
  private readonly word: (() => number) | undefined;

  /** The connection; null if lost ranks are not started again: under another launcher, or without `--max-restarts`. */
  static open(): LauncherLink | null {
    const { [REPLACES]: replaces, PIPEWRIGHT_THREAD_GROUP: threads } = process.env;
    if (replaces !== '1' || (threads === undefined && process.send === undefined)) return null;
    own ??= new LauncherLink();
    return own;
  }

  private constructor() {
    const take = (received: unknown): void => {
      const order = unmarked<LauncherOrder>(received);
      if (order === undefined) return;
      this.orders.push(order);
      this.wake?.();
    };
    const { [STATUS_FILE]: file, LOCAL_WORLD_SIZE } = process.env;
    const at = generationWord(Number(LOCAL_WORLD_SIZE));
    if (isThread()) {
      parentPort?.on('message', take);
      const shared = getEnvironmentData(STATUS_KEY);
      if (shared instanceof SharedArrayBuffer) this.word = () => Atomics.load(new Int32Array(shared), at);
    } else {
      process.on('message', take);
      if (file !== undefined) {
        distributed.watchGenerations(file, at);
        const opened = openSync(file, 'r');
        const word = new Int32Array(1);
        this.word = () => (readSync(opened, word, 0, 4, 4 * at) === 4 ? word[0]! : 0);
      }
    }
    this.hold(false);
  }

  /** The generation that the launcher has called for. */
  calledGeneration(): number {
    return this.word?.() ?? 0;
  }

  /** Reports how far this rank is. */
  tell(notice: RankNotice): void {
    if (isThread()) parentPort?.postMessage(marked(notice));
    else process.send?.(marked(notice));
  }

  /** Reports that this rank is ready; resolves to the launcher's order. */
  async ready(notice: Omit<Extract<RankNotice, { kind: 'ready' }>, 'kind' | 'atMs'>): Promise<LauncherOrder> {
    this.tell({ kind: 'ready', ...notice, atMs: steadyMs() });
    this.hold(true);
    while (this.orders.length === 0) await new Promise<void>((resolve) => (this.wake = resolve));
    this.hold(false);
    return this.orders.shift()!;
  }

  /** Whether the connection keeps this rank alive: while it waits for an order it must not end because its event loop is empty. */
  private hold(on: boolean): void {
    const channel = isThread() ? parentPort : process.channel;
    if (on) channel?.ref();
    else channel?.unref();
  }
}

let own: LauncherLink | undefined;

function isThread(): boolean {
  return process.env['PIPEWRIGHT_THREAD_GROUP'] !== undefined;
}
