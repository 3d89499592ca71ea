/** @file Where a module's parameters are made: options that all modules with parameters share. */
import type { Device } from '../tensor/device.ts';
import type { DTypeLike } from '../tensor/types.ts';

/** Where a module's parameters live and what type they have. */
export interface FactoryOptions {
  dtype?: DTypeLike | undefined;
  device?: Device | undefined;
}

/** The options of parametrised modules. */
export const factory: { dtype: DTypeLike | undefined; device: Device | undefined } = {
  dtype: undefined,
  device: undefined,
};
