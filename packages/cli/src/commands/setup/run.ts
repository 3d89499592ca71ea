/** @file `pipewright setup`: brings libtorch and builds the addon. */

export interface SetupCommandOptions {
  readonly verify?: boolean;
}

/** Runs the set-up and says in one line where things stand; returns the exit code. */
export async function setup(options: SetupCommandOptions): Promise<number> {
  const { runSetup } = await import('@pipewright/torch/setup');
  const { libtorch, addon, changed } = await runSetup({ verify: options.verify === true });
  console.log(
    `libtorch ${libtorch.version} in ${libtorch.dir}; addon in ${addon.dir}${changed ? '' : '; nothing was missing'}`,
  );
  return 0;
}
