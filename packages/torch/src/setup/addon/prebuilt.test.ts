/** @file The addon that comes with the package: taken where it fits, compiled where it does not; no compiler is asked for. */
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  type FakeMachine,
  fakeMachine,
  fakeNative,
  HeardProgress,
  pathWith,
  publishWheels,
} from '../../../testing/fake-machine.ts';
import type { Places } from '../base/places.ts';
import { diagnose } from '../doctor.ts';
import { chooseAddon, loadAddon } from '../load-addon.ts';
import { runSetup } from '../run-setup.ts';
import { type AddonStamp, addonStampFile } from './key.ts';

let machine: FakeMachine;
let places: Places;
let torchDir: string;
/** No compiler, no CMake. */
let bare: NodeJS.ProcessEnv;
beforeEach(async () => {
  machine = fakeMachine();
  ({ places, torchDir } = fakeNative(machine));
  machine.env['PIPEWRIGHT_LIBTORCH'] = torchDir;
  const built = await runSetup({ places, env: machine.env, progress: new HeardProgress() });
  const dir = join(places.prebuiltDir, 'linux');
  mkdirSync(dir, { recursive: true });
  for (const name of ['pipewright.node', 'stamp.json']) cpSync(join(built.addon.dir, name), join(dir, name));
  rmSync(places.addonDir, { recursive: true });
  rmSync(places.stateDir, { recursive: true });
  bare = { ...machine.env, PATH: pathWith(machine.root, ['sh', 'cat', 'python3']), CXX: '' };
});
afterEach(() => machine.dispose());

function changeStamp(change: (stamp: AddonStamp) => object): void {
  const file = addonStampFile(join(places.prebuiltDir, 'linux'));
  writeFileSync(file, JSON.stringify(change(JSON.parse(readFileSync(file, 'utf8')) as AddonStamp)));
}

test('set-up copies it without a compiler, and the doctor asks for none', async () => {
  expect(diagnose({ places, env: bare })).toMatchObject({ ok: true });
  const { addon } = await runSetup({ places, env: bare, progress: new HeardProgress() });
  expect(addon).toMatchObject({ built: false });
  expect(diagnose({ places, env: bare })).toMatchObject({ ok: true });
});

test('the first import does it by itself where libtorch is there', () => {
  expect((loadAddon({ places, env: bare }) as { answer: number }).answer).toBe(42);
  expect(chooseAddon(places, bare).stamp.key.libtorchDir).toBe(torchDir);
});

test.each([
  ['another version of libtorch', { libtorchVersion: '2.14.0' }],
  ['another libtorch of that version', { libtorchBytes: 1 }],
  ['another platform', { platform: 'sunos-sparc' }],
  ['other sources', { sources: 'others' }],
])('for %s it is not taken', async (_, difference) => {
  changeStamp((stamp) => ({ ...stamp, key: { ...stamp.key, ...difference } }));
  expect(() => chooseAddon(places, bare)).toThrow(expect.objectContaining({ code: 'ADDON_NOT_BUILT' }));
  await expect(runSetup({ places, env: bare, progress: new HeardProgress() })).rejects.toMatchObject({
    code: 'BUILD_TOOL_NOT_FOUND',
  });
});

test('where a compiler is missing, nothing is downloaded or unpacked first', async () => {
  rmSync(places.prebuiltDir, { recursive: true });
  publishWheels(machine, '2.15.0', 'cache');
  const heard = new HeardProgress();
  const { PIPEWRIGHT_LIBTORCH: _, ...env } = bare;
  await expect(runSetup({ places, env, progress: heard })).rejects.toMatchObject({ code: 'BUILD_TOOL_NOT_FOUND' });
  expect(heard.said).toEqual([]);
});
