/** @file Which GPU a rank has, on a machine that says it has four. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { native } from '../addon/addon.ts';

const used: number[] = [];

beforeEach(() => {
  vi.resetModules();
  used.length = 0;
  vi.spyOn(native, 'cudaDeviceCount').mockReturnValue(4);
  vi.spyOn(native, 'useGpu').mockImplementation((index) => void used.push(index));
});
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

test('that of the local rank, modulo the GPUs that are visible', async () => {
  vi.stubEnv('LOCAL_RANK', '6');
  const { ownGpu } = await import('./own-gpu.ts');
  expect([ownGpu(), ownGpu()]).toEqual([2, 2]);
  expect(used).toEqual([2]);
});

test('one that was set, also for what asks later', async () => {
  vi.stubEnv('LOCAL_RANK', '1');
  const { chooseGpu, ownGpu, useGpu } = await import('./own-gpu.ts');
  useGpu(3);
  chooseGpu();
  expect(ownGpu()).toBe(3);
  expect(used).toEqual([3]);
});
