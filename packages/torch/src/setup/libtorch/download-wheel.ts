/** @file Brings a wheel into the user's cache through pip, so that the user's own index settings hold. */
import { mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { AddonError } from '../base/addon-error.ts';
import { installCommand } from '../base/advice.ts';
import { endLeftover, runChild } from '../base/child.ts';
import { withLock } from '../base/lock.ts';
import type { Places } from '../base/places.ts';
import type { Progress } from '../base/progress.ts';
import { findPython, type Tool } from '../base/toolchain.ts';
import { otherPythonArguments, type WheelNeed } from './parts.ts';

export interface DownloadOptions {
  readonly places: Places;
  readonly env: NodeJS.ProcessEnv;
  readonly progress: Progress;
}

/** How often the growing file is looked at. */
const WATCH_MS = 250;

/** The path of a wheel in the cache, downloaded if it is not there. */
export async function downloadWheel(need: WheelNeed, options: DownloadOptions): Promise<string> {
  const { cacheDir } = options.places;
  const wheelDir = join(cacheDir, 'wheels');
  const cached = findWheel(wheelDir, need);
  if (cached !== null) return cached;
  const lock = {
    what: `downloading ${need.requirement}`,
    onWait: (message: string): void => options.progress.say(message),
  };
  return withLock(join(cacheDir, 'download.lock'), lock, async () => {
    const other = findWheel(wheelDir, need); // brought by the process we waited for
    if (other !== null) return other;
    const python = requirePython(options.env);
    const tempDir = join(cacheDir, 'tmp');
    const pidFile = join(cacheDir, 'pip.pid');
    await endLeftover(pidFile);
    rmSync(tempDir, { recursive: true, force: true });
    const run: PipRun = { ...options, python, need, tempDir, pidFile };
    mkdirSync(wheelDir, { recursive: true });
    const target = join(wheelDir, await pipDownload(run));
    renameSync(join(tempDir, 'out', basename(target)), target);
    rmSync(tempDir, { recursive: true, force: true });
    return target;
  });
}

/** Says now, not after other work, that Python is missing for a wheel that would have to be downloaded. */
export function requirePythonFor(need: WheelNeed, { places, env }: Pick<DownloadOptions, 'places' | 'env'>): void {
  if (findWheel(join(places.cacheDir, 'wheels'), need) === null) requirePython(env);
}

/** The newest wheel in `dir` that will do. Whole, because wheels are moved there only when they are. */
export function findWheel(dir: string, need: WheelNeed): string | null {
  let names: string[] = [];
  try {
    names = readdirSync(dir);
  } catch {
    return null;
  }
  const fitting = names.filter((name) => need.file.test(name)).map((name) => join(dir, name));
  fitting.sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  return fitting[0] ?? null;
}

interface PipRun extends DownloadOptions {
  readonly python: Tool;
  readonly need: WheelNeed;
  readonly tempDir: string;
  readonly pidFile: string;
}

/** Runs pip, a second time for another Python's wheel if there is none for this one. Returns the file's name. */
async function pipDownload(run: PipRun): Promise<string> {
  const first = await pipOnce(run, []);
  if (first.name !== null) return first.name;
  if (first.output.includes('No module named pip'))
    throw new AddonError(
      'PYTHON_NOT_FOUND',
      `downloadWheel: ${run.python.path} (${run.python.version}) has no pip; bring it with: ${installCommand('pip', run.env)}`,
    );
  const second = /No matching distribution|not a supported wheel/.test(first.output)
    ? await pipOnce(run, otherPythonArguments())
    : first;
  if (second.name !== null) return second.name;
  const tail = second.output.trim().split('\n').slice(-12).join('\n  ');
  throw new AddonError(
    'DOWNLOAD_FAILED',
    `downloadWheel: pip could not bring ${run.need.requirement}:\n  ${tail}\n` +
      'Check the network and the index settings (python3 -m pip config list), then run: npx pipewright setup\n' +
      'Or set PIPEWRIGHT_LIBTORCH to the folder of a torch that is already on this machine.',
  );
}

async function pipOnce(run: PipRun, extra: string[]): Promise<{ name: string | null; output: string }> {
  const outDir = join(run.tempDir, 'out');
  mkdirSync(outDir, { recursive: true });
  const label = `download ${run.need.requirement}`;
  run.progress.say(`${label} (with pip, into ${run.places.cacheDir})`);
  let total = 0;
  const watch = setInterval(() => run.progress.step(label, largestFile(run.tempDir), total), WATCH_MS);
  try {
    const { status, output } = await runChild({
      command: run.python.path,
      args: [
        ...['-m', 'pip', 'download', '--no-deps', '--no-input', '--disable-pip-version-check'],
        ...['--progress-bar=off', '--dest', outDir, ...extra, run.need.requirement],
      ],
      env: { ...run.env, TMPDIR: run.tempDir, PYTHONUNBUFFERED: '1' },
      pidFile: run.pidFile,
      onLine: (line) => {
        total = announcedSize(line) ?? total;
      },
    });
    const name = status === 0 ? (readdirSync(outDir).find((file) => run.need.file.test(file)) ?? null) : null;
    return { name, output };
  } finally {
    clearInterval(watch);
    run.progress.end(label);
  }
}

/** From pip's `Downloading torch-2.15.0-...whl (539.1 MB)`, the bytes. */
export function announcedSize(line: string): number | null {
  const match = /(?:Downloading|Using cached) \S+\.whl \(([\d.]+) ([kMG]?)B\)/.exec(line);
  if (match === null) return null;
  const units: Partial<Record<string, number>> = { k: 1e3, M: 1e6, G: 1e9 };
  return Number(match[1]) * (units[match[2] ?? ''] ?? 1);
}

/** pip writes to a folder of its own choice below its temporary folder. */
function largestFile(dir: string): number {
  let largest = 0;
  try {
    for (const entry of readdirSync(dir, { withFileTypes: true, recursive: true }))
      if (entry.isFile()) largest = Math.max(largest, statSync(join(entry.parentPath, entry.name)).size);
  } catch {
    // A file went away while we were looking.
  }
  return largest;
}

function requirePython(env: NodeJS.ProcessEnv): Tool {
  const python = findPython(env);
  if (python === null)
    throw new AddonError(
      'PYTHON_NOT_FOUND',
      `downloadWheel: Python 3 is needed to fetch libtorch and is not in PATH; bring it with: ${installCommand('python', env)}`,
    );
  return python;
}
