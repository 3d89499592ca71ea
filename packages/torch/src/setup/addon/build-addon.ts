/**
 * @file Builds the addon with CMake: object files stay in a build folder of the project per libtorch and compiler, so an
 * edit rebuilds little; the finished addon moves in one rename into a folder that all projects of the user share, named by
 * all it depends on.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { AddonError } from '../base/addon-error.ts';
import { installCommand, type Part } from '../base/advice.ts';
import { type ChildRun, endLeftover, runChild } from '../base/child.ts';
import { withLock } from '../base/lock.ts';
import { nodeApiInclude, type Places } from '../base/places.ts';
import type { Progress } from '../base/progress.ts';
import { findBuilder, findCmake, findCompiler, type Tool } from '../base/toolchain.ts';
import { type CudaToolkit, findCudaToolkit } from '../libtorch/cuda-toolkit.ts';
import type { Libtorch } from '../libtorch/find-libtorch.ts';
import { editedSources } from './edited-sources.ts';
import {
  ADDON_FILE,
  type AddonKey,
  type AddonStamp,
  addonKey,
  type BuiltAddon,
  CUDA_ADDON_FILE,
  HIDDEN,
  hashSources,
  keyName,
  libtorchKey,
  listAddons,
  markUsed,
} from './key.ts';
import { installPrebuilt, placeAddon } from './prebuilt.ts';
import { noteUsedAddon, readUsedAddon } from './used-addon.ts';

export interface BuildOptions {
  readonly places: Places;
  readonly env: NodeJS.ProcessEnv;
  readonly progress: Progress;
  /** Build although an addon with this key is there. */
  readonly force?: boolean;
  /** Only one with the CUDA addon beside it will do. */
  readonly cuda?: boolean;
}

export interface BuildResult extends BuiltAddon {
  /** False when an addon with this key was there already. */
  readonly built: boolean;
}

/** A compiler process over libtorch's headers takes about this much. */
const BYTES_PER_JOB = 1.5e9;
/** Builds in a row that a file saved meanwhile may spoil. */
const ROUNDS = 3;
/** Addons built from one folder of sources that are kept, so that changing branches does not build each time. */
const ADDONS_KEPT = 3;
/** Further ones go when they have not been used for a day, those of other projects after a month. */
const DAY_MS = 24 * 3600e3;
const MONTH_MS = 30 * DAY_MS;

/** The addon for this libtorch and these sources: the package's own, one that was built before, or built now. */
export async function buildAddon(libtorch: Libtorch, options: BuildOptions): Promise<BuildResult> {
  const { places, env, progress } = options;
  const will = (addon: BuiltAddon): boolean => !options.cuda || addon.stamp.withoutCuda === null;
  const find = (): BuiltAddon | null => (options.force ? null : findBuilt(libtorch, options));
  const ready = options.force ? null : (find() ?? installPrebuilt(places, libtorch, (file) => tryLoad(file, options)));
  if (ready !== null && will(ready)) return use(ready, false, places);
  const { compiler } = requireTools(env);
  const onWait = (message: string): void => progress.say(message);
  return withLock(places.lockFile, { what: 'building the addon', onWait }, async () => {
    const key = addonKey(places, libtorch, { tool: compiler, env });
    mkdirSync(places.addonDir, { recursive: true });
    // Another project of the user may be building the very same.
    const shared = join(places.addonDir, `${HIDDEN}${keyName(key)}.lock`);
    return withLock(shared, { what: `building the addon from ${places.nativeDir}`, onWait }, async () => {
      const other = find(); // built by the process we waited for
      if (other !== null && will(other)) return use(other, false, places);
      const built = await build({ libtorch, compiler, options });
      removeOld(places);
      return use(built, true, places);
    });
  });
}

function use(addon: BuiltAddon, built: boolean, places: Places): BuildResult {
  noteUsedAddon(places, addon.dir);
  markUsed(addon);
  return { dir: addon.dir, stamp: addon.stamp, built };
}

/** An addon that fits. A compiler that has gone since does not matter: the addon runs without it. */
export function findBuilt(
  libtorch: Libtorch,
  { places, env }: Pick<BuildOptions, 'places' | 'env'>,
): BuiltAddon | null {
  const addons = listAddons(places.addonDir);
  if (addons.length === 0) return null;
  const compiler = findCompiler(env);
  const wanted: Partial<AddonKey> =
    compiler === null
      ? { ...libtorchKey(libtorch), sources: hashSources(places.nativeDir) }
      : addonKey(places, libtorch, { tool: compiler, env });
  return addons.find(({ stamp }) => sameEntries(stamp.key, wanted)) ?? null;
}

/** The programs a build needs, or an error with the command that brings the first that is missing. */
export function requireTools(env: NodeJS.ProcessEnv): {
  compiler: Tool;
  cmake: Tool;
  builder: Tool & { generator: string };
} {
  return {
    compiler: requireTool('compiler', findCompiler(env), env),
    cmake: requireTool('cmake', findCmake(env), env),
    builder: requireTool('builder', findBuilder(env), env),
  };
}

interface MakeRun {
  readonly libtorch: Libtorch;
  readonly compiler: Tool;
  readonly options: BuildOptions;
}

async function build(make: MakeRun): Promise<BuiltAddon> {
  const { libtorch, options } = make;
  const { places } = options;
  options.progress.say(`build the addon for libtorch ${libtorch.version} (in ${places.buildDir})`);
  let key: AddonKey;
  let addon: string;
  let cuda: Awaited<ReturnType<typeof makeCuda>>;
  let rounds = 0;
  do {
    if (rounds++ === ROUNDS)
      throw new AddonError(
        'BUILD_FAILED',
        `buildAddon: files in ${places.nativeDir} changed during each of ${ROUNDS} builds; stop editing them, then run: npx pipewright setup`,
      );
    key = addonKey(places, libtorch, { tool: make.compiler, env: options.env });
    const buildDir = join(places.buildDir, keyName({ ...key, sources: '' }));
    addon = await makeOne(make, {
      buildDir,
      name: 'addon',
      source: places.nativeDir,
      output: ADDON_FILE,
      settings: (dir) => [`-DPIPEWRIGHT_ALONE=${editedSources(places.nativeDir, dir).join(';')}`],
    });
    cuda = await makeCuda(make, buildDir);
  } while (key.sources !== hashSources(places.nativeDir)); // somebody saved a file meanwhile

  const stamp: AddonStamp = {
    key,
    libtorchSource: libtorch.source,
    withoutCuda: cuda.problem,
    builtAt: new Date().toISOString(),
    builtFrom: places.nativeDir,
  };
  const check = (file: string): void => tryLoad(file, options);
  return placeAddon(places, stamp, {
    addon,
    cuda: cuda.file,
    check,
    replace: options.force === true || options.cuda === true,
  });
}

interface Target {
  readonly buildDir: string;
  readonly name: string;
  readonly source: string;
  readonly output: string;
  /** Settings for CMake, given the folder of the build. */
  readonly settings: (dir: string) => readonly string[];
}

/** The second addon is worth having, not worth failing for: its problem goes into the stamp and to the doctor. */
async function makeCuda(make: MakeRun, buildDir: string): Promise<{ file: string | null; problem: string | null }> {
  const { places, env, progress } = make.options;
  const source = join(places.nativeDir, 'cuda');
  if (!existsSync(source) || !readdirSync(source).some((name) => name.endsWith('.cc')))
    return { file: null, problem: 'no sources in native/cuda' };
  const toolkit = findCudaToolkit(make.libtorch, env);
  if (typeof toolkit === 'string') return { file: null, problem: toolkit };
  try {
    const target = {
      buildDir,
      name: 'cuda-addon',
      source,
      output: CUDA_ADDON_FILE,
      settings: () => cudaSettings(toolkit),
    };
    return { file: await makeOne(make, target), problem: null };
  } catch (error) {
    if (!(error instanceof AddonError)) throw error;
    progress.say(`the CUDA addon was not built, the rest was: ${error.message}`);
    return { file: null, problem: error.message };
  }
}

function cudaSettings(toolkit: CudaToolkit): string[] {
  const { nccl } = toolkit;
  return [
    `-DPIPEWRIGHT_CUDA_INCLUDE=${toolkit.include}`,
    `-DPIPEWRIGHT_CUDART=${toolkit.cudart}`,
    ...(nccl === null ? [] : [`-DPIPEWRIGHT_NCCL_INCLUDE=${nccl.include}`, `-DPIPEWRIGHT_NCCL=${nccl.library}`]),
  ];
}

/** Configures and builds one CMake project; returns the linked file. */
async function makeOne({ libtorch, compiler, options }: MakeRun, target: Target): Promise<string> {
  const { env, places, progress } = options;
  const { cmake, builder } = requireTools(env);
  const dir = join(target.buildDir, `${target.name}-${builder.generator === 'Ninja' ? 'ninja' : 'make'}`);
  const pidFile = join(places.buildDir, 'cmake.pid');
  const unfinished = join(dir, 'unfinished');
  await endLeftover(pidFile);
  // Ninja knows which of its objects are whole. make takes a half-written one for good, so it starts afresh.
  if (existsSync(unfinished) && builder.generator !== 'Ninja') rmSync(dir, { recursive: true });
  mkdirSync(dir, { recursive: true });
  rmSync(join(dir, target.output), { force: true });
  writeFileSync(unfinished, '');

  const logFile = join(target.buildDir, `${target.name}.log`);
  writeFileSync(logFile, '');
  const run = { command: cmake.path, env: { ...env, CLICOLOR_FORCE: '0' }, pidFile, logFile };
  const configure = [
    ...['-S', target.source, '-B', dir, '-G', builder.generator, `-DCMAKE_MAKE_PROGRAM=${builder.path}`],
    `-DCMAKE_CXX_COMPILER=${compiler.path}`,
    `-DPIPEWRIGHT_TORCH_DIR=${libtorch.dir}`,
    `-DPIPEWRIGHT_NODE_API_INCLUDE=${nodeApiInclude(places)}`,
    ...target.settings(dir),
  ];
  await requireSuccess({ ...run, args: configure }, `configure the ${target.name}`);
  const label = `compile the ${target.name}`;
  const onLine = (line: string): void => {
    const counted = /^\[(\d+)\/(\d+)\]/.exec(line);
    const percent = /^\[ *(\d+)%\]/.exec(line);
    if (counted) progress.step(label, Number(counted[1]), Number(counted[2]));
    else if (percent) progress.step(label, Number(percent[1]), 100);
  };
  const jobs = ['--build', dir, '--parallel', String(numJobs(env))];
  await requireSuccess({ ...run, args: jobs, onLine }, label);
  progress.end(label);
  rmSync(unfinished);
  return join(dir, target.output);
}

/** `PIPEWRIGHT_JOBS`, or as many compilers as there are cores and memory for. */
export function numJobs(env: NodeJS.ProcessEnv): number {
  const asked = Number(env['PIPEWRIGHT_JOBS']);
  if (Number.isInteger(asked) && asked > 0) return asked;
  return Math.max(1, Math.min(availableParallelism(), Math.floor(process.availableMemory() / BYTES_PER_JOB)));
}

async function requireSuccess(run: ChildRun, what: string): Promise<void> {
  const { status, output } = await runChild(run);
  if (status === 0) return;
  const lines = output.trimEnd().split('\n');
  const firstError = lines.findIndex((line) => /\berror\b|Error|Killed/.test(line));
  const shown = lines.slice(Math.max(0, firstError), Math.max(0, firstError) + 20).join('\n  ');
  const memory = /Killed|out of memory|virtual memory exhausted/.test(output)
    ? '\nThe compiler ran out of memory; try: PIPEWRIGHT_JOBS=1 npx pipewright setup'
    : '';
  throw new AddonError(
    'BUILD_FAILED',
    `buildAddon: could not ${what} (${run.command} ended with ${status}):\n  ${shown}\nThe whole output: ${run.logFile}${memory}`,
  );
}

/** An addon that does not load is not put in place. In a process of its own: a crash there is a message here. */
function tryLoad(file: string, { env }: BuildOptions): void {
  const code = 'process.dlopen({ exports: {} }, process.argv[1])';
  const result = spawnSync(process.execPath, ['-e', code, file], { env, encoding: 'utf8' });
  if (result.status === 0) return;
  throw new AddonError(
    'ADDON_LOAD_FAILED',
    `buildAddon: the addon was built but does not load (${result.signal ?? `status ${result.status}`}):\n${result.stderr.trim()}\nTry: npx pipewright doctor`,
  );
}

function requireTool<T>(part: Part, tool: T | null, env: NodeJS.ProcessEnv): T {
  if (tool !== null) return tool;
  const names: Partial<Record<Part, string>> = {
    compiler: 'a C++ compiler (c++, g++ or clang++)',
    cmake: 'CMake',
    builder: 'Ninja or make',
  };
  throw new AddonError(
    'BUILD_TOOL_NOT_FOUND',
    `buildAddon: ${names[part] ?? part} is needed and is not in PATH; bring it with: ${installCommand(part, env)}`,
  );
}

/** Addons of ours beyond a few, and anybody's that have not been used for long; half-made ones of a process that was killed. */
export function removeOld(places: Places, now: number = Date.now()): void {
  const addons = listAddons(places.addonDir);
  const used = readUsedAddon(places);
  const mine = addons.filter(({ stamp }) => stamp.builtFrom === places.nativeDir);
  const old = [
    ...mine.slice(ADDONS_KEPT).filter(({ usedMs }) => now - usedMs > DAY_MS),
    ...addons.filter(({ usedMs }) => now - usedMs > MONTH_MS),
  ].map(({ dir }) => dir);
  const halfMade = readdirSync(places.addonDir)
    .filter((name) => name.startsWith(`${HIDDEN}tmp-`))
    .map((name) => join(places.addonDir, name))
    .filter((dir) => now - (statSync(dir, { throwIfNoEntry: false })?.mtimeMs ?? now) > DAY_MS);
  for (const dir of [...old, ...halfMade]) if (dir !== used) rmSync(dir, { recursive: true, force: true });
}

function sameEntries<T extends object>(whole: T, part: Partial<T>): boolean {
  return (Object.keys(part) as (keyof T)[]).every((name) => whole[name] === part[name]);
}
