/** @file The whole set-up: libtorch found or fetched, the addon built. Does nothing where nothing is missing. */

import { type BuildResult, buildAddon, findBuilt, requireTools } from './addon/build-addon.ts';
import type { BuiltAddon } from './addon/key.ts';
import { findPrebuilt } from './addon/prebuilt.ts';
import { AddonError } from './base/addon-error.ts';
import { DEFAULT_TORCH, findPlaces, type Places } from './base/places.ts';
import { LineProgress, type Progress } from './base/progress.ts';
import { requirePythonFor } from './libtorch/download-wheel.ts';
import { fetchLibtorch } from './libtorch/fetch-libtorch.ts';
import { findLibtorch, formatTried, type Libtorch } from './libtorch/find-libtorch.ts';
import { torchWheel } from './libtorch/parts.ts';

export interface SetupOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly places?: Places;
  readonly progress?: Progress;
  /** Bring what a GPU needs too: the CUDA build of libtorch, NVIDIA's libraries and headers, the CUDA addon. */
  readonly cuda?: boolean;
  /** Check every file of the project's libtorch by hash, and build the addon again. */
  readonly verify?: boolean;
}

export interface SetupResult {
  readonly libtorch: Libtorch;
  readonly addon: BuildResult;
  /** Whether anything had to be done. */
  readonly changed: boolean;
}

export async function runSetup(options: SetupOptions = {}): Promise<SetupResult> {
  const env = options.env ?? process.env;
  const places = options.places ?? findPlaces(env);
  const progress = options.progress ?? new LineProgress();
  const verify = options.verify === true;
  const cuda = options.cuda === true;

  let { found, tried } = findLibtorch(places, { env });
  let fetched = false;
  if (env['PIPEWRIGHT_LIBTORCH'] && found === null)
    throw new AddonError(
      'LIBTORCH_NOT_FOUND',
      `runSetup: PIPEWRIGHT_LIBTORCH is set but will not do:\n${formatTried(tried)}\n` +
        `Set it to a torch folder (with lib/ and include/) or unset it to have libtorch ${DEFAULT_TORCH} fetched.`,
    );
  if (found === null || found.source === 'set-up') {
    const compiles = verify || needsCompiler({ places, libtorch: found, env, cuda });
    // Before anything is downloaded and unpacked.
    if (found === null) requirePythonFor(torchWheel(DEFAULT_TORCH), { places, env });
    if (compiles) requireTools(env);
    ({ fetched } = await fetchLibtorch({
      places,
      env,
      progress,
      verify,
      parts: [...(compiles ? (['headers'] as const) : []), ...(cuda ? (['cuda'] as const) : [])],
    }));
    ({ found, tried } = findLibtorch(places, { env }));
  }
  if (found === null)
    throw new AddonError(
      'LIBTORCH_NOT_FOUND',
      `internal: libtorch was fetched but is not found:\n${formatTried(tried)}`,
    );
  if (cuda && !found.hasCuda)
    throw new AddonError(
      'LIBTORCH_NOT_FOUND',
      `runSetup: libtorch ${found.version} in ${found.dir} has no libtorch_cuda.so, so --cuda cannot be done with it; ` +
        'unset PIPEWRIGHT_LIBTORCH to have a CUDA build fetched',
    );
  const addon = await buildAddon(found, { places, env, progress, force: verify, cuda });
  return { libtorch: found, addon, changed: fetched || addon.built };
}

interface Wanted {
  readonly places: Places;
  readonly libtorch: Libtorch | null;
  readonly env: NodeJS.ProcessEnv;
  readonly cuda: boolean;
}

/** Whether the addon will have to be compiled: none came with the package, and none is there for these sources. */
function needsCompiler({ places, libtorch, env, cuda }: Wanted): boolean {
  const prebuilt = findPrebuilt(places, libtorch?.version ?? DEFAULT_TORCH);
  const will = (addon: BuiltAddon | null): boolean => addon !== null && (!cuda || addon.stamp.withoutCuda === null);
  return !will(prebuilt) && (libtorch === null || !will(findBuilt(libtorch, { places, env })));
}
