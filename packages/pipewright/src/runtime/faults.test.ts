/** @file Faults in the middle of a step: everybody ends, and the error says where it was and why. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { buildSchedule, formatAction } from '@pipewright/schedule';
import type { Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { batch, layers, make, mse } from '../../testing/layers.ts';
import { StepError } from './errors.ts';
import type { PipelineRuntime } from './runtime.ts';

/** The error of a step that must fail. */
function failure(runtime: PipelineRuntime): StepError {
  const { x, y } = batch(8);
  try {
    runtime.step(x, { target: y });
  } catch (error) {
    if (error instanceof StepError) return error;
    throw error;
  }
  throw new Error('expected an error');
}

describe('the error of a step', () => {
  test('of a loss: says which microbatch, on what, and where it was thrown', () => {
    const lossFn = (output: Tensor, target: Tensor): Tensor => mse(output, target.narrow(1, 0, 3));
    const error = failure(make(layers(2), 'Interleaved1F1B', { lossFn }).runtime);
    expect(error.message).toMatch(
      /^rank 0, slot \d+ \(1F0\): stage 1, loss of microbatch 0: .* \(output: float64\[2, 4\] with gradient; target: float64\[2, 4\]\)$/,
    );
    expect(error.stack).toContain(`StepError: ${error.message}\n`);
    expect(error.stack).toMatch(/lossFn .*faults\.test\.ts/);
  });

  test('of an overlapped action names its part', () => {
    const schedule = buildSchedule('DualPipeV', { ranks: 1, microbatches: 4 });
    const { runtime } = make(layers(schedule.stages), schedule);
    const whole = runtime.schedule.order[0]!.findIndex((action) => action?.kind === 'OVERLAP_F_B');
    const parts = runtime.schedule.order[0]![whole]!.parts!;
    runtime.addHook({
      before: (action, slot) => {
        if (slot === whole && action.kind === parts[1]!.kind) throw new RangeError('in the second part');
      },
    });
    const error = failure(runtime);
    expect([error.slot, error.action]).toEqual([whole, formatAction(parts[1]!)]);
    expect(error.message).toMatch(/: in the second part$/);
  });
});

interface Verdict {
  readonly problems: readonly string[];
  readonly fault: { readonly kind: string; readonly mode: string };
}

test('kill -9, SIGSTOP, an error, a wrong shape at a random slot: all end, the cause is named, nothing is left', async () => {
  const script = fileURLToPath(new URL('../../../../tests/faults/faults.mjs', import.meta.url));
  const output = await new Promise<string>((resolve) => {
    // What is wrong is in the output; other programs may slow this machine down, so nothing is said about time, and ranks
    // have as much as they need to tell what they know.
    const args = [
      script,
      '--faults',
      '1',
      '--seed',
      '3',
      '--ranks',
      '2',
      '--limit',
      '15',
      '--grace',
      '60',
      '--patience',
      '120',
      '--json',
    ];
    execFile(process.execPath, args, (_error, stdout, stderr) => resolve(stdout + stderr));
  });
  const verdicts = JSON.parse(output) as Verdict[];
  expect(verdicts.filter(({ problems }) => problems.length > 0)).toEqual([]);
  expect(verdicts.map(({ fault: { kind, mode } }) => `${kind} ${mode}`)).toEqual([
    'kill processes',
    'stop processes',
    'throw processes',
    'shape processes',
    'throw threads',
    'shape threads',
  ]);
});
