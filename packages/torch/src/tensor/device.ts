/** @file Where a tensor lives: `cpu`, `cuda:0`, `meta`. */

import { show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { checkWhole } from '../base/options.ts';
import { chooseGpu } from './own-gpu.ts';

/** A device as text: its type, and an index where there are several. */
export type Device = 'cpu' | 'meta' | 'cuda' | `cuda:${number}` | (string & {});

const typeNames = new Map([
  [0, 'cpu'],
  [1, 'cuda'],
  [14, 'meta'],
]);

/** The text of libtorch's device type and index. */
export function deviceText(type: number, index: number): Device {
  checkWhole('deviceText: the type', type, Number.MIN_SAFE_INTEGER);
  checkWhole('deviceText: the index', index, Number.MIN_SAFE_INTEGER);
  const name = typeNames.get(type) ?? `device${type}`;
  return index < 0 || name === 'cpu' || name === 'meta' ? name : `${name}:${index}`;
}

/** Checks the text of a device. */
export function toDevice(value: unknown): Device {
  if (value === 'cpu') return value;
  if (typeof value === 'string' && /^[a-z]+(:\d+)?$/.test(value)) {
    if (value.startsWith('cuda')) chooseGpu();
    return value;
  }
  throw new TorchError('DEVICE', `${show(value)} is not a device; use 'cpu', 'cuda', 'cuda:1' or 'meta'`);
}
