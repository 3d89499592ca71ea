/** @file Looks at everything the engine stands on and says, for each part that is missing, the command that brings it. */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { join } from 'node:path';
import { ADDON_FILE, type BuiltAddon, CUDA_ADDON_FILE, hashSources, keyName, listAddons } from './addon/key.ts';
import { findPrebuilt } from './addon/prebuilt.ts';
import { pickAddon } from './addon/used-addon.ts';
import { installCommand } from './base/advice.ts';
import { DEFAULT_TORCH, findPlaces, type Places } from './base/places.ts';
import { findBuilder, findCmake, findCompiler, findPip, findPython, query, which } from './base/toolchain.ts';
import { type CudaMachine, type CudaParts, cudaVerdict, findCuda } from './cuda-verdict.ts';
import { findCudaToolkit } from './libtorch/cuda-toolkit.ts';
import {
  compareVersions,
  type FindResult,
  findLibtorch,
  formatTried,
  type Libtorch,
} from './libtorch/find-libtorch.ts';

/** `missing` parts are needed now; `absent` ones are not, because what they would bring is there or is optional. */
export type Health = 'ok' | 'missing' | 'absent' | 'info';

export interface Finding {
  readonly part: string;
  readonly health: Health;
  readonly value: string;
  /** The command that brings the part. */
  readonly fix?: string;
}

export interface Report {
  /** False when something needed is missing. */
  readonly ok: boolean;
  readonly findings: readonly Finding[];
}

export interface DoctorOptions {
  readonly places?: Places;
  readonly env?: NodeJS.ProcessEnv;
  /** Load the addon in a process of its own; on unless told. */
  readonly tryLoad?: boolean;
}

const OLDEST_NODE = '20.19.0';
const SETUP = 'npx pipewright setup';
/** What changes where things are looked for; shown when set. */
const SETTINGS = [
  'PIPEWRIGHT_LIBTORCH',
  'PIPEWRIGHT_HOME',
  'PIPEWRIGHT_CACHE',
  'PIPEWRIGHT_PYTHON',
  'PIPEWRIGHT_ADDON',
  'PIPEWRIGHT_CUDA_ADDON',
  'PIPEWRIGHT_JOBS',
  'CXX',
  'CUDA_HOME',
] as const;
const THREAD_VARIABLES = ['OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'] as const;

export function diagnose(options: DoctorOptions = {}): Report {
  const env = options.env ?? process.env;
  const places = options.places ?? findPlaces(env);
  const search = findLibtorch(places, { env });
  const addon = search.found && pickAddon(places, search.found, listAddons(places.addonDir));
  const prebuilt = findPrebuilt(places, search.found?.version ?? DEFAULT_TORCH) !== null;
  const needsBuild = !prebuilt && (addon === null || addon.stamp.key.sources !== hashSources(places.nativeDir));
  const machine = findCuda(env);
  const findings = [
    nodeFinding(),
    npmFinding(env),
    ...pythonFindings(env, search.found === null),
    ...buildFindings(env, needsBuild),
    libtorchFinding(search),
    ...cudaFindings(search.found, { env, machine }),
    ...addonFindings(addon, { needsBuild, prebuilt, env, tryLoad: options.tryLoad !== false }),
    verdictFinding({
      ...machine,
      visible: env['CUDA_VISIBLE_DEVICES'],
      libtorch: search.found?.hasCuda ? search.found : null,
      hasAddon: addon !== null && existsSync(join(addon.dir, CUDA_ADDON_FILE)),
    }),
    ...machineFindings(env),
  ];
  return { ok: findings.every(({ health }) => health !== 'missing'), findings };
}

/** The whole report, one part per line; `paint` may colour the health. */
export function formatReport(
  report: Report,
  paint: (health: Health, text: string) => string = (_, text) => text,
): string {
  const width = Math.max(...report.findings.map(({ part }) => part.length));
  const lines = report.findings.flatMap(({ part, health, value, fix }) => [
    `${paint(health, health.padEnd(7))}  ${part.padEnd(width)}  ${value.replaceAll('\n', `\n${' '.repeat(width + 11)}`)}`,
    ...(fix === undefined ? [] : [`${' '.repeat(width + 11)}bring it with: ${fix}`]),
  ]);
  const summary = report.ok ? 'Nothing that is needed is missing.' : 'Something needed is missing; see above.';
  return [...lines, '', summary].join('\n');
}

/** Only what is missing and the commands for it; empty when nothing is. */
export function formatProblems(report: Report): string {
  return report.findings
    .filter(({ health }) => health === 'missing')
    .map(
      ({ part, value, fix }) =>
        `  missing ${part}: ${value.replaceAll('\n', '\n  ')}${fix === undefined ? '' : `\n    bring it with: ${fix}`}`,
    )
    .join('\n');
}

function nodeFinding(): Finding {
  const value = `${process.version} (Node-API ${process.versions['napi'] ?? '?'}), ${process.platform} ${process.arch}`;
  const old = compareVersions(process.version.slice(1), OLDEST_NODE) < 0;
  return old
    ? { part: 'Node', health: 'missing', value: `${value}; ${OLDEST_NODE} or later is needed`, fix: 'nvm install 22' }
    : { part: 'Node', health: 'ok', value };
}

function npmFinding(env: NodeJS.ProcessEnv): Finding {
  const path = which('npm', env);
  const version = path && query(path, ['--version'], env)?.trim();
  return version
    ? { part: 'npm', health: 'ok', value: version }
    : { part: 'npm', health: 'absent', value: 'not in PATH', fix: installCommand('npm', env) };
}

/** Python is needed to fetch libtorch, and for nothing else. */
function pythonFindings(env: NodeJS.ProcessEnv, needed: boolean): Finding[] {
  const health = needed ? 'missing' : 'absent';
  const python = findPython(env);
  if (python === null)
    return [{ part: 'Python', health, value: 'no Python 3 in PATH', fix: installCommand('python', env) }];
  const found: Finding = { part: 'Python', health: 'ok', value: `${python.version} (${python.path})` };
  const pip = findPip(python, env);
  return pip === null
    ? [found, { part: 'pip', health, value: `${python.path} has none`, fix: installCommand('pip', env) }]
    : [found, { part: 'pip', health: 'ok', value: pip }];
}

function buildFindings(env: NodeJS.ProcessEnv, needed: boolean): Finding[] {
  const parts = [
    ['C++ compiler', 'compiler', findCompiler(env)],
    ['CMake', 'cmake', findCmake(env)],
    ['Ninja or make', 'builder', findBuilder(env)],
  ] as const;
  return parts.map(([part, advice, tool]) =>
    tool === null
      ? { part, health: needed ? 'missing' : 'absent', value: 'not in PATH', fix: installCommand(advice, env) }
      : { part, health: 'ok', value: `${tool.version} (${tool.path})` },
  );
}

function libtorchFinding({ found, tried }: FindResult): Finding {
  if (found === null)
    return { part: 'libtorch', health: 'missing', value: `not found\n${formatTried(tried)}`, fix: libtorchFix(tried) };
  return { part: 'libtorch', health: 'ok', value: `${found.version} in ${found.dir} (${found.source})` };
}

function libtorchFix(tried: FindResult['tried']): string {
  return tried[0]?.source === 'PIPEWRIGHT_LIBTORCH' ? `unset PIPEWRIGHT_LIBTORCH && ${SETUP}` : SETUP;
}

function cudaFindings(
  libtorch: Libtorch | null,
  { env, machine: { driver, gpus } }: { readonly env: NodeJS.ProcessEnv; readonly machine: CudaMachine },
): Finding[] {
  const findings: Finding[] = [
    {
      part: 'CUDA driver',
      health: driver === null ? 'absent' : 'ok',
      value: driver ?? 'none: tensors live on the CPU',
    },
  ];
  if (libtorch === null) return findings;
  findings.push(
    libtorch.hasCuda
      ? { part: 'libtorch CUDA', health: 'ok', value: `libtorch_cuda for CUDA ${libtorch.cudaVersion ?? 'unknown'}` }
      : {
          part: 'libtorch CUDA',
          health: 'absent',
          value: 'this libtorch has no libtorch_cuda',
          ...(driver === null ? {} : { fix: `${SETUP} --cuda` }),
        },
  );
  if (libtorch.hasCuda) {
    const toolkit = findCudaToolkit(libtorch, env);
    findings.push(
      typeof toolkit === 'string'
        ? { part: 'CUDA headers', health: 'absent', value: toolkit }
        : {
            part: 'CUDA headers',
            health: 'ok',
            value: `${toolkit.include}${toolkit.nccl ? ', with NCCL' : ', without NCCL'}`,
          },
    );
  }
  return gpus === 0 ? findings : [...findings, ...gpuFindings(env)];
}

/** What several GPUs, or several ranks on one, depend on. */
function gpuFindings(env: NodeJS.ProcessEnv): Finding[] {
  const smi = which('nvidia-smi', env);
  if (smi === null) return [];
  const fields = 'index,name,memory.total,memory.free,compute_mode';
  const gpus = query(smi, [`--query-gpu=${fields}`, '--format=csv,noheader'], env)?.trim() ?? '';
  const count = gpus === '' ? 0 : gpus.split('\n').length;
  const links = count > 1 ? query(smi, ['topo', '-p2p', 'r'], env)?.trim() : undefined;
  const hasMps = existsSync(join(env['CUDA_MPS_PIPE_DIRECTORY'] ?? '/tmp/nvidia-mps', 'control'));
  const visible = env['CUDA_VISIBLE_DEVICES'];
  return [
    {
      part: 'GPUs',
      health: 'info',
      value: `${gpus}${visible === undefined ? '' : `\nCUDA_VISIBLE_DEVICES=${visible}`}`,
    },
    ...(links === undefined || links === '' ? [] : [{ part: 'peer access', health: 'info' as const, value: links }]),
    {
      part: 'MPS',
      health: 'info',
      value: hasMps
        ? 'runs: several processes share a GPU at the same time'
        : 'does not run: processes that share a GPU take turns; nvidia-cuda-mps-control -d starts it',
    },
  ];
}

/** Whether tensors can be on a GPU, and else the first reason why not. */
function verdictFinding(parts: CudaParts): Finding {
  const { usable, reason, setupHelps } = cudaVerdict(parts);
  return {
    part: 'CUDA',
    health: usable ? 'ok' : 'absent',
    value: usable ? `usable, ${reason}` : `not usable: ${reason}`,
    ...(setupHelps ? { fix: `${SETUP} --cuda` } : {}),
  };
}

interface AddonContext {
  readonly needsBuild: boolean;
  readonly prebuilt: boolean;
  readonly env: NodeJS.ProcessEnv;
  readonly tryLoad: boolean;
}

function addonFindings(addon: BuiltAddon | null, { needsBuild, prebuilt, env, tryLoad }: AddonContext): Finding[] {
  if (addon === null && prebuilt)
    return [{ part: 'addon', health: 'ok', value: 'came with the package; nothing has to be compiled' }];
  if (addon === null) return [{ part: 'addon', health: 'missing', value: 'not built', fix: SETUP }];
  const { key, withoutCuda } = addon.stamp;
  const value = `${keyName(key)} for libtorch ${key.libtorchVersion}, built with ${key.compiler}`;
  const findings: Finding[] = [];
  const problem = tryLoad ? loadProblem(join(addon.dir, ADDON_FILE), env) : null;
  if (problem !== null)
    findings.push({ part: 'addon', health: 'missing', value: `${value}\n${problem}`, fix: `${SETUP} --verify` });
  else if (needsBuild)
    findings.push({ part: 'addon', health: 'missing', value: `${value}; its sources have changed since`, fix: SETUP });
  else findings.push({ part: 'addon', health: 'ok', value: `${value}${tryLoad ? ', loads' : ''}` });
  const cuda = existsSync(join(addon.dir, CUDA_ADDON_FILE));
  findings.push({
    part: 'CUDA addon',
    health: cuda ? 'ok' : 'absent',
    value: cuda ? 'built' : (withoutCuda ?? 'not built').split('\n').slice(0, 3).join('\n'),
  });
  return findings;
}

/** What the loader says, from a process of its own, so that a crash is a line of the report. */
function loadProblem(file: string, env: NodeJS.ProcessEnv): string | null {
  const code =
    'try { process.dlopen({ exports: {} }, process.argv[1]) } catch (e) { console.error(e.message); process.exit(1) }';
  const result = spawnSync(process.execPath, ['-e', code, file], { env, encoding: 'utf8', timeout: 120_000 });
  if (result.status === 0) return null;
  return result.stderr.trim().split('\n')[0] || `the process ended with ${result.signal ?? result.status}`;
}

function machineFindings(env: NodeJS.ProcessEnv): Finding[] {
  const gigabytes = (bytes: number): string => (bytes / 2 ** 30).toFixed(1);
  const settings = SETTINGS.filter((name) => env[name])
    .map((name) => `${name}=${env[name]}`)
    .join('\n');
  const threads = THREAD_VARIABLES.map((name) => `${name}=${env[name] ?? '(not set)'}`).join(' ');
  return [
    { part: 'cores', health: 'info', value: String(availableParallelism()) },
    {
      part: 'memory',
      health: 'info',
      value: `${gigabytes(totalmem())} GiB, ${gigabytes(process.availableMemory())} GiB available`,
    },
    { part: 'threads', health: 'info', value: threads },
    { part: 'settings', health: 'info', value: settings || 'none' },
  ];
}
