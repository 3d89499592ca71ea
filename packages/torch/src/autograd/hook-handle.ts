/** @file Takes a hook away again. */
import { collectCallbacks } from './callbacks.ts';
import { engine } from './native.ts';

/** What registering a hook returns. @example const handle = x.registerHook(print); handle.remove() */
export class HookHandle {
  private readonly id: number;

  constructor(id: number) {
    this.id = id;
  }

  /** Takes the hook away; doing so twice does nothing. */
  remove(): void {
    engine.removeHook(this.id);
    collectCallbacks();
  }

  [Symbol.dispose](): void {
    this.remove();
  }
}
