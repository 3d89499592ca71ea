/** @file What the addon exports for autograd: functions called back from the engine are known to it by numbers. */
import { native } from '../addon/addon.ts';

/** A handle of a tensor, or null where there is none. */
export type Handle = number | null;

/** The addon's functions of this folder. */
export interface NativeAutograd {
  setCallbackRunner(runner: (id: number, extra: number, handles: Handle[]) => Handle[] | undefined): void;
  takeBuried(): number[] | undefined;
  liveCallbacks(): number;
  forceBridge(on: boolean): boolean;

  registerHook(tensor: number, callback: number): void;
  registerAccumulatedHook(tensor: number, callback: number): void;
  registerNodePrehook(node: number, callback: number): void;
  registerNodeHook(node: number, callback: number): void;
  removeHook(callback: number): boolean;

  wrapFunction(
    name: string,
    inputs: readonly number[],
    outputs: readonly Handle[],
    dirty: readonly number[],
    nonDifferentiable: readonly number[],
    saved: readonly Handle[],
    callback: number,
    materialize: boolean,
  ): Handle[];
  functionSaved(): Handle[];
  functionNeeds(): boolean[];

  pushSavedHooks(pack: number, unpack: number): void;
  pushCheckpoint(callback: number, inputs: readonly number[], earlyStop: boolean, check: boolean): void;
  popSavedHooks(): void;

  isAutocastCacheEnabled(): boolean;
  setAutocastCacheEnabled(on: boolean): void;
  getAutocastDtype(device: string): number;
}

/** The loaded addon, as this folder sees it. */
export const engine: NativeAutograd = native as unknown as NativeAutograd;
