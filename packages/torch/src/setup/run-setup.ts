/** @file The whole set-up: libtorch found or fetched, the addon built. Does nothing where nothing is missing. */
import { AddonError } from './addon-error.ts';
import { type BuildResult, buildAddon } from './build-addon.ts';
import { fetchLibtorch } from './fetch-libtorch.ts';
import { DEFAULT_TORCH, findLibtorch, formatTried, type Libtorch } from './find-libtorch.ts';
import { findPlaces, type Places } from './places.ts';
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
  if (found === null || found.source === 'project folder') {
    ({ fetched } = await fetchLibtorch({ places, env, progress, verify }));
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
