/** @file Names of files in a checkpoint. */

/** What the checkpoint consists of. */
export const MANIFEST = 'manifest.json';
/** The file that names the checkpoint to go on from. */
export const LATEST = 'latest';
/** The index that says in which file each tensor is. */
export const INDEX = 'model.safetensors.index.json';
/** The only file of weights where there is no index. */
export const SINGLE = 'model.safetensors';

/** A name of a file in the folder itself. */
export function isFileName(name: unknown): name is string {
  return typeof name === 'string' && /^[^/\\\0]{1,200}$/.test(name) && name !== '.' && name !== '..';
}
