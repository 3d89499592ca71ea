/** @file The whole set-up: libtorch found or fetched, the addon built. Does nothing where nothing is missing. */
import { AddonError } from './addon-error.ts';
import { type BuildResult, buildAddon, findBuilt, requireTools } from './build-addon.ts';
import { requirePythonFor } from './download-wheel.ts';
import { fetchLibtorch } from './fetch-libtorch.ts';
import { DEFAULT_TORCH, findLibtorch, formatTried, type Libtorch } from './find-libtorch.ts';
import { torchWheel } from './libtorch-parts.ts';
import { findPlaces, type Places } from './places.ts';
import { findPrebuilt } from './prebuilt.ts';
import { LineProgress, type Progress } from './progress.ts';

export interface SetupOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly places?: Places;
  readonly progress?: Progress;
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

  let { found, tried } = findLibtorch(places, { env });
  let fetched = false;
  if (env['PIPEWRIGHT_LIBTORCH'] && found === null)
    throw new AddonError(
      'LIBTORCH_NOT_FOUND',
      `runSetup: PIPEWRIGHT_LIBTORCH is set but will not do:\n${formatTried(tried)}\n` +
        `Set it to a torch folder (with lib/ and include/) or unset it to have libtorch ${DEFAULT_TORCH} fetched.`,
    );
  if (found === null || found.source === 'set-up') {
    const compiles = verify || needsCompiler(places, found, env);
    // Before anything is downloaded and unpacked.
    if (found === null) requirePythonFor(torchWheel(DEFAULT_TORCH), { places, env });
    if (compiles) requireTools(env);
    ({ fetched } = await fetchLibtorch({ places, env, progress, verify, parts: compiles ? ['headers'] : [] }));
    ({ found, tried } = findLibtorch(places, { env }));
  }
  if (found === null)
    throw new AddonError(
      'LIBTORCH_NOT_FOUND',
      `internal: libtorch was fetched but is not found:\n${formatTried(tried)}`,
    );
  const addon = await buildAddon(found, { places, env, progress, force: verify });
  return { libtorch: found, addon, changed: fetched || addon.built };
}

/** Whether the addon will have to be compiled: none came with the package, and none is there for these sources. */
function needsCompiler(places: Places, libtorch: Libtorch | null, env: NodeJS.ProcessEnv): boolean {
  if (findPrebuilt(places, libtorch?.version ?? DEFAULT_TORCH) !== null) return false;
  return libtorch === null || findBuilt(libtorch, { places, env }) === null;
}
