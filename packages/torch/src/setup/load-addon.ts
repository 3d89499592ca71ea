/** @file Picks the addon that fits the libtorch in use and loads it, in the main thread and in workers; or explains. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { ADDON_FILE, type BuiltAddon, CUDA_ADDON_FILE, listAddons } from './addon/key.ts';
import { installPrebuilt } from './addon/prebuilt.ts';
import { pickAddon } from './addon/used-addon.ts';
import { AddonError } from './base/addon-error.ts';
import { findPlaces, type Places } from './base/places.ts';
import { diagnose, formatProblems } from './doctor.ts';
import { describeLibtorch, findLibtorch } from './libtorch/find-libtorch.ts';

export interface LoadOptions {
  readonly places?: Places;
  readonly env?: NodeJS.ProcessEnv;
}

/** The exports of the addon. `PIPEWRIGHT_ADDON` names a file to load instead, for example a sanitized build. */
export function loadAddon(options: LoadOptions = {}): unknown {
  const env = options.env ?? process.env;
  const places = options.places ?? findPlaces(env);
  const file = env['PIPEWRIGHT_ADDON'] || join(chooseAddon(places, env).dir, ADDON_FILE);
  return load(file, places, env);
}

/** The exports of the CUDA addon, or null where it was not built. Loads libtorch's CUDA libraries: call it when needed. */
export function loadCudaAddon(options: LoadOptions = {}): unknown {
  const env = options.env ?? process.env;
  const places = options.places ?? findPlaces(env);
  const file = env['PIPEWRIGHT_CUDA_ADDON'] || join(chooseAddon(places, env).dir, CUDA_ADDON_FILE);
  return existsSync(file) ? load(file, places, env) : null;
}

/** The addon built for the libtorch that the search finds. Python is not asked: the addon's stamp knows its place. */
export function chooseAddon(places: Places, env: NodeJS.ProcessEnv): BuiltAddon {
  const addons = listAddons(places.addonDir);
  const { found } = findLibtorch(places, { env, python: false });
  if (found !== null) {
    const fitting = pickAddon(places, found, addons) ?? installPrebuilt(places, found);
    if (fitting !== null) return fitting;
    const others = addons.filter(({ stamp }) => stamp.key.libtorchDir === found.dir);
    const why = others[0]
      ? `the addon was built for libtorch ${others[0].stamp.key.libtorchVersion}, but ${found.dir} is now ${found.version}`
      : `no addon was built for libtorch ${found.version} in ${found.dir}`;
    throw failure('ADDON_NOT_BUILT', `loadAddon: ${why}; build it with: npx pipewright setup`, { places, env });
  }
  if (!env['PIPEWRIGHT_LIBTORCH'])
    for (const { stamp } of addons.filter((addon) => addon.stamp.libtorchSource === 'python')) {
      const libtorch = describeLibtorch('python', stamp.key.libtorchDir);
      if (typeof libtorch === 'string') continue;
      const fitting = pickAddon(places, libtorch, addons);
      if (fitting !== null) return fitting;
    }
  throw failure('LIBTORCH_NOT_FOUND', 'loadAddon: there is no libtorch to run with', { places, env });
}

function load(file: string, places: Places, env: NodeJS.ProcessEnv): unknown {
  try {
    return createRequire(file)(file);
  } catch (error) {
    const reason = (error as Error).message.split('\n')[0];
    throw failure('ADDON_LOAD_FAILED', `loadAddon: ${file} does not load: ${reason}`, { places, env, cause: error });
  }
}

interface FailureContext {
  readonly places: Places;
  readonly env: NodeJS.ProcessEnv;
  readonly cause?: unknown;
}

/** The message, and what the doctor would say about this machine. */
function failure(
  code: 'ADDON_LOAD_FAILED' | 'ADDON_NOT_BUILT' | 'LIBTORCH_NOT_FOUND',
  message: string,
  context: FailureContext,
): AddonError {
  const report = diagnose({ places: context.places, env: context.env, tryLoad: false });
  return new AddonError(
    code,
    [message, formatProblems(report), 'More: npx pipewright doctor'].filter(Boolean).join('\n'),
    {
      cause: context.cause,
    },
  );
}
