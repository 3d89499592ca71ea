/** @file The addon that comes with the package, where it fits this platform and libtorch: copied, not compiled. */
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { AddonError } from '../base/addon-error.ts';
import type { Places } from '../base/places.ts';
import { compareVersions, type Libtorch } from '../libtorch/find-libtorch.ts';
import {
  ADDON_FILE,
  type AddonKey,
  type AddonStamp,
  addonStampFile,
  type BuiltAddon,
  CUDA_ADDON_FILE,
  HIDDEN,
  hashSources,
  keyName,
  LIBTORCH_LINK,
  libtorchKey,
  listAddons,
} from './key.ts';

/** The addon of the package for this libtorch version, or null: none came along, or it does not fit. */
export function findPrebuilt(places: Places, version: string): BuiltAddon | null {
  const fitting = listAddons(places.prebuiltDir).find(
    ({ stamp: { key } }) =>
      key.platform === `${process.platform}-${process.arch}` &&
      compareVersions(key.libtorchVersion, version) === 0 &&
      key.sources === hashSources(places.nativeDir),
  );
  return fitting ?? null;
}

/** Puts the package's addon beside the built ones; null where it does not fit this libtorch or does not pass the check. */
export function installPrebuilt(places: Places, libtorch: Libtorch, check?: (file: string) => void): BuiltAddon | null {
  const prebuilt = findPrebuilt(places, libtorch.version);
  if (prebuilt === null) return null;
  const here = libtorchKey(libtorch);
  if (here.libtorchBytes !== prebuilt.stamp.key.libtorchBytes) return null;
  const stamp = { ...prebuilt.stamp, key: { ...prebuilt.stamp.key, ...here }, libtorchSource: libtorch.source };
  const cuda = join(prebuilt.dir, CUDA_ADDON_FILE);
  try {
    return placeAddon(places, stamp, {
      addon: join(prebuilt.dir, ADDON_FILE),
      cuda: existsSync(cuda) ? cuda : null,
      ...(check === undefined ? {} : { check }),
    });
  } catch (error) {
    if (error instanceof AddonError) return null; // made for a newer C library, for example: it is compiled here
    throw error;
  }
}

export interface AddonFiles {
  readonly addon: string;
  readonly cuda: string | null;
  /** Looks at the addon before it is put in place, for example by loading it; throws if it will not do. */
  readonly check?: (file: string) => void;
  /** Put it in the place of one with the same key. */
  readonly replace?: boolean;
}

/** Makes the folder of an addon aside, whole, and moves it in place at once. Who comes second uses what is there. */
export function placeAddon(places: Places, stamp: AddonStamp, files: AddonFiles): BuiltAddon {
  mkdirSync(places.addonDir, { recursive: true });
  const tempDir = mkdtempSync(join(places.addonDir, `${HIDDEN}tmp-`));
  try {
    copyFileSync(files.addon, join(tempDir, ADDON_FILE));
    if (files.cuda !== null) copyFileSync(files.cuda, join(tempDir, CUDA_ADDON_FILE));
    symlinkSync(stamp.key.libtorchDir, join(tempDir, LIBTORCH_LINK));
    files.check?.(join(tempDir, ADDON_FILE));
    writeFileSync(addonStampFile(tempDir), JSON.stringify(stamp, null, 2));
    const dir = addonFolder(places, stamp.key);
    if (files.replace && existsSync(dir)) renameSync(dir, join(tempDir, 'old'));
    try {
      renameSync(tempDir, dir);
    } catch (error) {
      if (!existsSync(join(dir, ADDON_FILE))) throw error;
    }
    rmSync(join(dir, 'old'), { recursive: true, force: true });
    return { dir, stamp };
  } finally {
    rmSync(tempDir, { recursive: true, force: true });
  }
}

function addonFolder(places: Places, key: AddonKey): string {
  return join(places.addonDir, keyName(key));
}
