/** @file Which of NVIDIA's wheels a CUDA build of libtorch needs: read from what the torch wheel itself requires. */
import { type LibtorchPart, type WheelNeed, wheelNeed } from './parts.ts';

/** One `Requires-Dist` line: a package, the extras asked of it, and which versions will do. */
export interface Requirement {
  readonly name: string;
  readonly extras: readonly string[];
  readonly versions: string;
}

/** Extras of the toolkit that are not needed to run, but to compile against it. */
const EXTRAS_TO_COMPILE = ['crt', 'cccl'];
/** What torch requires for its Python side only. */
const PYTHON_ONLY = /^(cuda-bindings|triton)$/;

/** The packages of NVIDIA that torch requires on Linux, from the METADATA of its wheel. */
export function cudaRequirements(metadata: string): Requirement[] {
  return parseRequirements(metadata)
    .filter(({ marker }) => !marker.includes('extra') && (marker === '' || marker.includes('Linux')))
    .filter(({ name }) => /^(nvidia|cuda)-/.test(name) && !PYTHON_ONLY.test(name))
    .map(({ name, extras, versions }) => ({
      name,
      versions,
      extras: extras.length === 0 ? [] : [...extras, ...EXTRAS_TO_COMPILE],
    }));
}

/** The packages behind the extras of a package, from the METADATA of its wheel. */
export function extraRequirements(metadata: string, extras: readonly string[]): Requirement[] {
  const wanted = parseRequirements(metadata).filter(({ marker }) => {
    const extra = /\bextra *== *['"]([^'"]+)['"]/.exec(marker)?.[1];
    return extra !== undefined && extras.includes(extra) && /sys_platform *== *['"]linux|^extra/.test(marker);
  });
  const byName = new Map(wanted.map(({ name, versions }) => [name, { name, versions, extras: [] }]));
  return [...byName.values()];
}

/** The wheel for a requirement; of its files, libraries and headers. */
export function nvidiaWheel({ name, versions }: Requirement): WheelNeed {
  return wheelNeed(name, versions, nvidiaPart);
}

/** A requirement that is a list of others: nothing of it is unpacked. */
export function listWheel({ name, versions }: Requirement): WheelNeed {
  return wheelNeed(name, versions, () => null);
}

function nvidiaPart(file: string): LibtorchPart | null {
  if (/\/lib(cudart|cupti)\.so\.\d+$/.test(file)) return 'runtime';
  return /^nvidia\/.+\/(lib\/[^/]+\.so[.\d]*|include\/.+)$/.test(file) ? 'cuda' : null;
}

interface MarkedRequirement extends Requirement {
  readonly marker: string;
}

function parseRequirements(metadata: string): MarkedRequirement[] {
  const lines = metadata.matchAll(/^Requires-Dist: *([\w.-]+)(?:\[([^\]]*)\])? *([^;\r\n]*)(?:; *(.*))?\r?$/gm);
  return [...lines].map(([, name = '', extras = '', versions = '', marker = '']) => ({
    name: name.toLowerCase(),
    extras: extras.split(',').filter(Boolean),
    versions: versions.replace(/[() ]/g, ''),
    marker,
  }));
}
