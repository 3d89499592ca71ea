/** @file What a thread of `launch` runs: the script, with its output sent to the launcher as it is printed. */
import { parentPort } from 'node:worker_threads';
import { endGroup, runScript, type ScriptStart } from './run-script.ts';

/** What a thread prints. */
export interface ThreadOutput {
  readonly kind: 'output';
  readonly stream: 'stdout' | 'stderr';
  readonly text: string;
}

/** Runs the script; called by the thread's own start with the data of `spawnThreads`. */
export async function main(start: ScriptStart): Promise<unknown> {
  sendOutput('stdout');
  sendOutput('stderr');
  let over = false;
  process.on('exit', (code) => {
    if (over || code !== 0) return;
    // The script called process.exit, which is an end like any other.
    endGroup();
    parentPort?.postMessage({ kind: 'result', value: undefined });
  });
  try {
    return await runScript(start);
  } finally {
    over = true;
  }
}

/** A thread's own streams wait for its event loop, so a training loop would print nothing until its end. */
function sendOutput(name: 'stdout' | 'stderr'): void {
  const decoder = new TextDecoder();
  process[name].write = (chunk: string | Uint8Array, ...rest: unknown[]): boolean => {
    const text = typeof chunk === 'string' ? chunk : decoder.decode(chunk, { stream: true });
    const output: ThreadOutput = { kind: 'output', stream: name, text };
    parentPort?.postMessage(output);
    const callback = rest.find((one) => typeof one === 'function') as ((error?: Error) => void) | undefined;
    if (callback !== undefined) process.nextTick(callback);
    return true;
  };
}
