/** @file What a rank does with the user's script, in a thread as in a process: settings, TypeScript, `main`, a good end. */
import { fileURLToPath } from 'node:url';
import { checkPlain } from './plain-data.ts';
import { allowTypeScript } from './typescript.ts';

/** What a rank is to run. */
export interface ScriptStart {
  /** The script, as a file: URL. */
  readonly script: string;
  /** What the script finds in `process.argv` after its own name. */
  readonly args: readonly string[];
  /** What its `main` is called with. */
  readonly data: unknown;
}

/** Where a rank notes the script that it runs. */
const SCRIPT = Symbol.for('pipewright.rankScript');

/** The script that this process or thread runs as a rank; undefined where it is none. */
export function scriptOfRank(): string | undefined {
  return (globalThis as Record<symbol, string | undefined>)[SCRIPT];
}

/** Imports the script. Where it exports `main`, that is the work; otherwise the work is over when nothing is left to do. */
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
