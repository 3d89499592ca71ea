/** @file The doctor on a machine with nothing, and the loader's error there, which says the same. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type FakeMachine, fakeMachine, fakeProgram, fakeTorch, pathWith } from '../../testing/fake-machine.ts';
import { noteUsedAddon } from './addon/used-addon.ts';
import { installCommand } from './base/advice.ts';
import { diagnose, formatReport, type Report } from './doctor.ts';
import { loadAddon } from './load-addon.ts';

let machine: FakeMachine;
let env: NodeJS.ProcessEnv;
beforeEach(() => {
  machine = fakeMachine();
  const bin = pathWith(machine.root, []);
  fakeProgram(bin, 'dnf', 'true');
  env = { ...machine.env, PATH: bin, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '', OPENBLAS_NUM_THREADS: '2' };
  delete env['MKL_NUM_THREADS'];
});
afterEach(() => machine.dispose());

/** Without what differs from machine to machine. */
function stable(text: string): string {
  return text
    .replaceAll(machine.root, '')
    .replaceAll('sudo ', '')
    .replace(/(Node +)v.*/, '$1(this one)')
    .replace(/(CUDA driver +).*/, '$1(any)')
    .replace(/(absent|ok) +(CUDA driver)/, 'absent   $2')
    .replace(/(absent|ok) +(CUDA  +).*\n( +bring it with: npx pipewright setup --cuda\n)?/, 'absent   $2(any)\n')
    .replace(/(cores +)\d+/, '$1(any)')
    .replace(/(memory +).*/, '$1(any)');
}

test('a machine with nothing: every missing part has its command', () => {
  const report = diagnose({ places: machine.places, env });
  expect(report.ok).toBe(false);
  expect(stable(formatReport(report))).toMatchInlineSnapshot(`
    "ok       Node           (this one)
    absent   npm            not in PATH
                            bring it with: dnf install -y npm
    missing  Python         no Python 3 in PATH
                            bring it with: dnf install -y python3 python3-pip
    missing  C++ compiler   not in PATH
                            bring it with: dnf install -y gcc-c++
    missing  CMake          not in PATH
                            bring it with: dnf install -y cmake
    missing  Ninja or make  not in PATH
                            bring it with: dnf install -y ninja-build
    missing  libtorch       not found
                              looked at set-up: /state/libtorch: not there
                              looked at python: python3: no importable torch
                            bring it with: npx pipewright setup
    absent   CUDA driver    (any)
    missing  addon          not built
                            bring it with: npx pipewright setup
    absent   CUDA           (any)
    info     cores          (any)
    info     memory         (any)
    info     threads        OMP_NUM_THREADS=1 MKL_NUM_THREADS=(not set) OPENBLAS_NUM_THREADS=2
    info     settings       PIPEWRIGHT_HOME=/state
                            PIPEWRIGHT_CACHE=/cache
                            PIPEWRIGHT_JOBS=2

    Something needed is missing; see above."
  `);
});

test('the loader says the same', () => {
  let message = '';
  try {
    loadAddon({ places: machine.places, env });
  } catch (error) {
    message = stable((error as Error).message);
    expect(error).toMatchObject({ name: 'AddonError', code: 'LIBTORCH_NOT_FOUND' });
  }
  expect(message).toMatchInlineSnapshot(`
    "loadAddon: there is no libtorch to run with
      missing Python: no Python 3 in PATH
        bring it with: dnf install -y python3 python3-pip
      missing C++ compiler: not in PATH
        bring it with: dnf install -y gcc-c++
      missing CMake: not in PATH
        bring it with: dnf install -y cmake
      missing Ninja or make: not in PATH
        bring it with: dnf install -y ninja-build
      missing libtorch: not found
        looked at set-up: /state/libtorch: not there
        looked at python: python3: no importable torch
        bring it with: npx pipewright setup
      missing addon: not built
        bring it with: npx pipewright setup
    More: npx pipewright doctor"
  `);
});

test('an addon that does not load is reported with what the loader says', () => {
  const dir = fakeTorch(join(machine.root, 'site'), '2.15.0');
  const withLibtorch = { ...env, PIPEWRIGHT_LIBTORCH: dir };
  const addon = join(machine.places.addonDir, 'abc');
  mkdirSync(addon, { recursive: true });
  writeFileSync(join(addon, 'pipewright.node'), 'not a library');
  const key = { libtorchDir: dir, libtorchVersion: '2.15.0', libtorchBytes: 2_100_000, sources: '', compiler: 'c++' };
  writeFileSync(
    join(addon, 'stamp.json'),
    JSON.stringify({ key, libtorchSource: 'PIPEWRIGHT_LIBTORCH', withoutCuda: 'no headers' }),
  );
  noteUsedAddon(machine.places, addon);
  const find = (report: Report, part: string): string | undefined =>
    report.findings.find((f) => f.part === part)?.value;
  const report = diagnose({ places: machine.places, env: withLibtorch });
  expect(find(report, 'addon')).toMatch(/for libtorch 2\.15\.0, built with c\+\+\n.*(too short|invalid ELF header)/);
  expect(find(report, 'CUDA addon')).toBe('no headers');
  expect(() => loadAddon({ places: machine.places, env: withLibtorch })).toThrow(
    expect.objectContaining({
      code: 'ADDON_LOAD_FAILED',
      message: expect.stringMatching(/does not load: .*pipewright\.node/),
    }),
  );
});

test('PIPEWRIGHT_ADDON that is not there', () => {
  expect(() => loadAddon({ places: machine.places, env: { ...env, PIPEWRIGHT_ADDON: '/nowhere/x.node' } })).toThrow(
    expect.objectContaining({ code: 'ADDON_LOAD_FAILED' }),
  );
});

test('commands in the words of the package manager that is there', () => {
  const say = (...managers: string[]): string => {
    const bin = pathWith(machine.root, []);
    for (const name of managers) fakeProgram(bin, name, 'true');
    return installCommand('compiler', { PATH: bin }).replace('sudo ', '');
  };
  expect([say('apt-get'), say('dnf'), say('apk'), say('pacman'), say('brew'), say()]).toEqual([
    'apt-get install -y g++',
    'dnf install -y gcc-c++',
    'apk add build-base',
    'pacman -S --noconfirm gcc',
    'brew install gcc',
    'apt-get install -y g++',
  ]);
});
