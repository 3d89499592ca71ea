/**
 * @file Which addon a workspace uses: the one of its last set-up, also while its native sources are being edited. The note is a
 * file of the workspace, because the folder of addons is shared by all projects of the user.
 */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join, sep } from 'node:path';
import type { Places } from '../base/places.ts';
import type { Libtorch } from '../libtorch/find-libtorch.ts';
import { type BuiltAddon, hashSources, type ListedAddon, libtorchKey, markUsed } from './key.ts';

/** How often the use of an addon is noted. */
const HOUR_MS = 3600e3;

/** Of those that fit libtorch: the one that the last set-up of the workspace chose, else the one of these sources. */
export function pickAddon(places: Places, libtorch: Libtorch, addons: readonly ListedAddon[]): ListedAddon | null {
  const fitting = addons.filter((addon) => fits(addon, libtorch));
  if (fitting.length === 0) return null;
  const used = readUsedAddon(places);
  const noted = used === null ? undefined : fitting.find(({ dir }) => dir === used);
  const sources = noted === undefined ? hashSources(places.nativeDir) : '';
  const picked = noted ?? fitting.find(({ stamp }) => stamp.key.sources === sources);
  if (picked === undefined) return null;
  if (Date.now() - picked.usedMs > HOUR_MS) markUsed(picked);
  return picked;
}

function fits({ stamp }: BuiltAddon, libtorch: Libtorch): boolean {
  const { libtorchDir, libtorchVersion, libtorchBytes } = libtorchKey(libtorch);
  const { key } = stamp;
  return (
    key.libtorchDir === libtorchDir && key.libtorchVersion === libtorchVersion && key.libtorchBytes === libtorchBytes
  );
}

/** The folder noted by the last set-up, or null. An installed package has no note: its sources do not change. */
export function readUsedAddon(places: Places): string | null {
  if (isInstalled(places)) return null;
  try {
    return (JSON.parse(readFileSync(noteFile(places), 'utf8')) as { dir: string }).dir;
  } catch {
    return null;
  }
}

export function noteUsedAddon(places: Places, dir: string): void {
  if (isInstalled(places) || readUsedAddon(places) === dir) return;
  mkdirSync(places.stateDir, { recursive: true });
  const draft = `${noteFile(places)}.${process.pid}`;
  writeFileSync(draft, JSON.stringify({ dir }));
  renameSync(draft, noteFile(places));
}

function noteFile({ stateDir }: Places): string {
  return join(stateDir, 'used-addon.json');
}

function isInstalled({ nativeDir }: Places): boolean {
  return nativeDir.includes(`${sep}node_modules${sep}`);
}
