/** @file Runs the user's script as a rank, in a thread or a process: settings, TypeScript, `main`, and a clean end. */
import { fileURLToPath } from 'node:url';
import { checkPlain } from './plain-data.ts';
import { allowTypeScript } from './typescript.ts';

/** The script of a rank and its arguments. */
export interface ScriptStart {
  /** The script, as a file: URL. */
  readonly script: string;
  /** The arguments in `process.argv` after the script's name. */
  readonly args: readonly string[];
  /** The argument of its `main`. */
  readonly data: unknown;
}

/** Where a rank notes the script that it runs. */
const SCRIPT = Symbol.for('pipewright.rankScript');

/** The script that this process or thread runs as a rank; undefined where it is none. */
export function scriptOfRank(): string | undefined {
  return (globalThis as Record<symbol, string | undefined>)[SCRIPT];
}

/** Imports the script and calls `main` if it exports one; otherwise the rank ends when the event loop is empty. */
export async function runScript({ script, args, data }: ScriptStart): Promise<unknown> {
  process.argv = [process.argv[0]!, fileURLToPath(script), ...args];
  (globalThis as Record<symbol, string | undefined>)[SCRIPT] = script;
  allowTypeScript(script);
  const { main } = (await import(script)) as { readonly main?: unknown };
  if (typeof main === 'function') {
    const result = await (main as (data: unknown) => unknown)(data);
    checkPlain('what main returned', result);
    return result;
  }
  await new Promise<unknown>((resolve) => process.once('beforeExit', resolve));
  return undefined;
}

/** Leaves the process group, if the script has joined one and not left it, so that its last messages arrive. */
export function endGroup(): void {
  const end = (globalThis as Record<symbol, unknown>)[Symbol.for('pipewright.destroyProcessGroup')];
  if (typeof end === 'function') (end as () => void)();
}
