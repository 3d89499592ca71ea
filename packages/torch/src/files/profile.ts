/** @file What a piece of work does in time, as libtorch's profiler sees it: a file that Perfetto and Chrome open. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { native } from '../addon/addon.ts';
import { checkFunction, checkText } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { checkWritable, writeFile } from './write-file.ts';

/** What a profile holds. */
export interface ProfileOptions {
  /** Whether every operator has the shapes of its inputs. Default false. */
  readonly recordShapes?: boolean | undefined;
}

/**
 * Runs `body` and writes what it did to `path`, a trace for ui.perfetto.dev (compressed where the name ends in `.gz`): the
 * operators of this thread and of its backwards, and every kernel and copy of the GPUs with its stream, those of NCCL and of
 * replayed graphs too. Returns what `body` returns. Kernels of this package that are no operators (see the guide) are not in
 * it. Measure with it, but do not time with it: it slows down what it watches.
 *
 * @example profile('step.json', () => runtime.step(x, { target: y }))
 */
export function profile<T>(path: string, body: () => T, options: ProfileOptions = {}): T {
  checkText('profile', 'the first argument', path);
  checkFunction('profile', body, 'the second argument');
  checkOptions('profile', options, ['recordShapes']);
  checkWritable(path);
  const folder = mkdtempSync(join(tmpdir(), 'pipewright-profile-'));
  let isOn = false;
  try {
    native.startProfiler(options.recordShapes === true);
    isOn = true;
    const result = body();
    if (result instanceof Promise) {
      result.catch(() => undefined);
      throw new TorchError(
        'ASYNC',
        'profile: the function is asynchronous, so the profile would end before its work does; await outside and pass a synchronous function',
      );
    }
    const file = join(folder, 'trace.json');
    isOn = false;
    native.stopProfiler(file);
    const trace = readFileSync(file);
    writeFile(path, path.endsWith('.gz') ? gzipSync(trace) : trace);
    return result;
  } finally {
    if (isOn) native.stopProfiler('');
    rmSync(folder, { recursive: true, force: true });
  }
}
