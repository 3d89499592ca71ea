/** @file Mixed precision: operators that gain from a 16-bit type run in it, those that need float32 run in that. */

import { native } from '../addon/addon.ts';
import { checkObject, checkText } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { type DType, type DTypeName, dtypeOfCode, toDType } from '../tensor/dtype.ts';
import { synchronous } from './modes.ts';
import { engine } from './native.ts';

/** What autocast does. */
export interface AutocastOptions {
  /** `cpu` or `cuda`. Default: `cpu`. */
  device?: string | undefined;
  /** `bfloat16` or `float16`. Default: bfloat16 on the CPU, float16 on CUDA. */
  dtype?: DType | DTypeName | undefined;
  /** False switches autocast off inside. Default true. */
  enabled?: boolean | undefined;
  /** Keeps the 16-bit copies of weights until the outermost autocast ends. Default true. */
  cache?: boolean | undefined;
}

/**
 * Runs `body` in mixed precision.
 *
 * @example const loss = autocast({ dtype: 'bfloat16' }, () => criterion(model.forward(x), y))
 */
export function autocast<T>(options: AutocastOptions, body: () => T): T {
  checkOptions('autocast', options, ['device', 'dtype', 'enabled', 'cache']);
  if (typeof body !== 'function')
    throw new TorchError('BAD_ARGUMENT', `autocast: expected a function as second argument, got a ${typeof body}`);
  checkObject('autocast', 'the first argument', options, 'options');
  const device = deviceType(options.device ?? 'cpu');
  const dtype = options.dtype === undefined ? dtypeOfCode(engine.getAutocastDtype(device)) : toDType(options.dtype);
  if (dtype.name !== 'bfloat16' && dtype.name !== 'float16') {
    throw new TorchError('DTYPE', `autocast: dtype must be bfloat16 or float16, got ${dtype.name}`);
  }
  const settings = { device, enabled: options.enabled !== false, dtype: dtype.code };
  return withAutocastState({ devices: [settings], cache: options.cache ?? engine.isAutocastCacheEnabled() }, () =>
    synchronous('autocast', body()),
  );
}

/** Whether autocast is on for a device type. */
export function isAutocastEnabled(device = 'cpu'): boolean {
  return native.isAutocastEnabled(deviceType(device));
}

/** The type that autocast uses on a device. @example getAutocastDtype('cpu').name // 'bfloat16' */
export function getAutocastDtype(device = 'cpu'): DType {
  return dtypeOfCode(engine.getAutocastDtype(deviceType(device)));
}

function deviceType(device: string): string {
  checkText('autocast', 'the device', device);
  const type = device.split(':')[0]!;
  if (type !== 'cpu' && type !== 'cuda')
    throw new TorchError('DEVICE', `autocast: device must be 'cpu' or 'cuda', got '${device}'`);
  return type;
}

/** The settings of autocast in this thread. */
export interface AutocastState {
  readonly devices: readonly { readonly device: string; readonly enabled: boolean; readonly dtype: number }[];
  readonly cache: boolean;
}

/** The settings now: of the CPU, and of CUDA where one of the devices is there. */
export function autocastState(devices: readonly string[]): AutocastState {
  const types = ['cpu', ...(devices.some((device) => device.startsWith('cuda')) ? ['cuda'] : [])];
  return {
    devices: types.map((device) => ({
      device,
      enabled: native.isAutocastEnabled(device),
      dtype: engine.getAutocastDtype(device),
    })),
    cache: engine.isAutocastCacheEnabled(),
  };
}

/** Runs `body` under settings taken before. */
export function withAutocastState<T>(state: AutocastState, body: () => T): T {
  const before = state.devices.map(({ device, enabled, dtype }) => ({
    device,
    was: native.setAutocast(device, enabled, dtype),
  }));
  const cache = engine.isAutocastCacheEnabled();
  engine.setAutocastCacheEnabled(state.cache);
  native.enterAutocast();
  try {
    return body();
  } finally {
    native.exitAutocast();
    engine.setAutocastCacheEnabled(cache);
    for (const { device, was } of before.reverse()) native.setAutocast(device, was[0], was[1]);
  }
}
