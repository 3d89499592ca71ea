/** @file What a process of `launch` runs: the script, and a report to the launcher at its end. */

import { packThrown } from '@pipewright/torch/environment';
import { steadyMs } from '../../base/steady-clock.ts';
import { watchJoining } from './joining.ts';
import { errorReport, type ProcessReport, resultReport } from './report.ts';
import { endGroup, runScript, type ScriptStart } from './run-script.ts';

let over = false;

function fail(thrown: unknown): void {
  if (over) return;
  over = true;
  send(errorReport(packThrown(thrown), steadyMs()), () => process.exit(1));
}

function succeed(value: unknown): void {
  if (over) return;
  endGroup();
  over = true;
  send(resultReport(value, steadyMs()), (error) => {
    if (error === null) return;
    over = false;
    fail(
      new TypeError(
        `main returned what cannot be sent: ${error.message}; return numbers, texts, arrays and plain objects`,
      ),
    );
  });
}

function send(report: ProcessReport, sent: (error: Error | null) => void): void {
  try {
    process.send?.(report, undefined, undefined, sent);
  } catch (error) {
    sent(error as Error);
  }
}

/** Waits until what the rank has printed is read: ending at once would lose it. */
function printAtOnce(): void {
  for (const stream of [process.stdout, process.stderr]) {
    const { _handle: handle } = stream as unknown as { readonly _handle?: { setBlocking?(on: boolean): void } | null };
    handle?.setBlocking?.(true);
  }
}

printAtOnce();
const joining = watchJoining();
// Without its launcher a rank must not go on. One that is blocked is ended by the launcher's guard.
process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
process.on('uncaughtException', (error) => {
  // A handler of the script decides what happens.
  if (process.listenerCount('uncaughtException') === 1) fail(error);
});
process.on('exit', (code) => {
  if (code === 0) joining.endedWell();
  // The system keeps eight bits of an exit code: 256 is not a success.
  if (code % 256 === 0 && code !== 0) process.exitCode = 1;
  // The script called process.exit: its last messages are still sent.
  if (code === 0 && !over) endGroup();
});
process.once('message', (start: ScriptStart) => {
  process.channel?.unref();
  runScript(start).then(succeed).catch(fail);
});
