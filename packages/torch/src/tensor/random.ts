/** @file Random numbers: the default generator and generators of one's own. The same seed gives PyTorch's numbers. */

import { native } from '../addon/addon.ts';
import { TorchError } from '../base/errors.ts';
import { checkTensors } from './check-tensors.ts';
import type { Device } from './device.ts';
import { Tensor } from './tensor.ts';

/**
 * A source of random numbers of its own, for one rank or one use.
 *
 * @example const g = new Generator().manualSeed(7); rand([2], { generator: g })
 */
export class Generator {
  private h: number;

  constructor(device: Device = 'cpu') {
    this.h = native.createGenerator(device);
    net.register(this, this.h, this);
  }

  /** libtorch's handle. */
  get handle(): number {
    if (this.h === 0) throw new TorchError('DISPOSED', 'this generator was disposed of');
    return this.h;
  }

  /** Starts the sequence that belongs to `seed`. */
  manualSeed(seed: number | bigint): this {
    native.seedGenerator(this.handle, seed);
    return this;
  }

  initialSeed(): number | bigint {
    return native.generatorSeed(this.handle);
  }

  getState(): Tensor {
    return Tensor.adopt(native.getRandomState(this.handle));
  }

  setState(state: Tensor): this {
    checkTensors('Generator.setState', { state });
    native.setRandomState(this.handle, state.handle);
    return this;
  }

  dispose(): void {
    if (this.h === 0) return;
    net.unregister(this);
    native.releaseGenerator(this.h);
    this.h = 0;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

const net = new FinalizationRegistry<number>((handle) => native.releaseGenerator(handle));

/** Seeds the default generators of all devices. @example manualSeed(0) */
export function manualSeed(seed: number | bigint): void {
  native.manualSeed(seed);
}

/** The seed of the default generator. */
export function initialSeed(): number | bigint {
  return native.generatorSeed(null);
}

/** State of the default generator of the CPU. */
export function getRngState(): Tensor {
  return Tensor.adopt(native.getRandomState(null));
}

/** Puts the default generator of the CPU back to a state taken before. */
export function setRngState(state: Tensor): void {
  checkTensors('setRngState', { state });
  native.setRandomState(null, state.handle);
}
