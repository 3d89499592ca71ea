/** @file Functions of the user's in place of what the runtime does for a kind of action. */
import type { AnyRuntime, CustomFunction } from './options.ts';
import type { Executor } from './row/planned-action.ts';

/** What performs a kind of action with a user's function; `builtIn` is what `context.run()` does. */
export function customExecutor(runtime: AnyRuntime, custom: CustomFunction, builtIn: Executor | undefined): Executor {
  return (planned, step) => {
    const { args, kwargs, target } = step.batch;
    custom(planned.action, {
      runtime,
      args,
      kwargs,
      target,
      losses: step.options.losses,
      run: () => builtIn?.(planned, step),
    });
  };
}
