/** @file Names of files in a checkpoint. */

/** The manifest. */
export const MANIFEST = 'manifest.json';
/** The file with the name of the checkpoint to continue from. */
export const LATEST = 'latest';
/** The index: which file each tensor is in. */
export const INDEX = 'model.safetensors.index.json';
/** The only file of weights where there is no index. */
export const SINGLE = 'model.safetensors';

/** A name of a file in the folder itself. */
export function isFileName(name: unknown): name is string {
  return typeof name === 'string' && /^[^/\\\0]{1,200}$/.test(name) && name !== '.' && name !== '..';
}
