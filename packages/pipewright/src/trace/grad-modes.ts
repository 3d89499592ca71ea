/** @file The modes that operators run under while a model is traced, as regions. */
import { getAutocastDtype, isAutocastEnabled } from '@pipewright/torch';
import type { Region } from '../graph/regions.ts';

/** Gradients on or off. */
export function gradRegion(on: boolean): Region {
  return { op: 'wrap_with_set_grad_enabled', before: [on], key: `grad ${on}` };
}

const autocastDevices = ['cpu', 'cuda'] as const;

/** The settings of autocast in short. */
export function autocastKey(): string {
  if (!isAutocastEnabled('cpu') && !isAutocastEnabled('cuda')) return '';
  return autocastDevices.map((device) => `${isAutocastEnabled(device)} ${getAutocastDtype(device).name}`).join();
}

/** The settings of autocast as regions. */
export function autocastRegions(): Region[] {
  return autocastDevices.map((device): Region => {
    const on = isAutocastEnabled(device);
    const { name } = getAutocastDtype(device);
    return {
      op: 'wrap_with_autocast',
      before: [device, { dtype: name }, on, null],
      key: `autocast ${device} ${name} ${on}`,
    };
  });
}
