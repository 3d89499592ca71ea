/** @file The whole set-up over a small libtorch: builds what is missing, then nothing; a wrong setting stops it. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type FakeMachine, fakeMachine, fakeNative, HeardProgress } from '../../testing/fake-machine.ts';
import { diagnose } from './doctor.ts';
import { runSetup } from './run-setup.ts';

let machine: FakeMachine;
beforeEach(() => {
  machine = fakeMachine();
});
afterEach(() => machine.dispose());

test('the first run builds, the second does nothing, and the doctor agrees', async () => {
  const { places, torchDir } = fakeNative(machine);
  const env = { ...machine.env, PIPEWRIGHT_LIBTORCH: torchDir };
  const heard = new HeardProgress();
  const options = { places, env, progress: heard };
  expect(diagnose({ places, env }).ok).toBe(false);
  expect(await runSetup(options)).toMatchObject({ changed: true, libtorch: { dir: torchDir } });
  expect(heard.said).toHaveLength(1);
  expect((await runSetup(options)).changed).toBe(false);
  expect(heard.said).toHaveLength(1);
  expect(diagnose({ places, env }).ok).toBe(true);
});

test('a PIPEWRIGHT_LIBTORCH that will not do is not replaced by a download', async () => {
  const env = { ...machine.env, PIPEWRIGHT_LIBTORCH: join(machine.root, 'nothing') };
  const progress = new HeardProgress();
  await expect(runSetup({ places: machine.places, env, progress })).rejects.toMatchObject({
    code: 'LIBTORCH_NOT_FOUND',
    message: expect.stringMatching(
      /^runSetup: PIPEWRIGHT_LIBTORCH is set but will not do:[^]*no lib\/libtorch_cpu\.so in it/,
    ),
  });
  expect(progress.said).toEqual([]);
});
