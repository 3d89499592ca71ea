/** @file `pipewright setup`: finds or downloads libtorch and builds the addon. */

/** The flags of the command. */
export interface SetupFlags {
  readonly cuda?: boolean;
  readonly verify?: boolean;
}

/** Runs the set-up and says in one line where things are; returns the exit code. */
export async function setup(flags: SetupFlags): Promise<number> {
  const { runSetup } = await import('@pipewright/torch/setup');
  const { libtorch, addon, changed } = await runSetup({ cuda: flags.cuda === true, verify: flags.verify === true });
  console.log(
    `libtorch ${libtorch.version} in ${libtorch.dir}; addon in ${addon.dir}${changed ? '' : '; nothing was missing'}`,
  );
  return 0;
}
