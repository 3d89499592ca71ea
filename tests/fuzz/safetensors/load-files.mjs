// @ts-check
/**
 * @file The child of fuzz-safetensors.mjs: `load-safetensors.mjs SEED FROM TO FOLDER` loads spoilt files, reads what it was
 * given, and writes to FOLDER/at which file it is at. Prints counts as JSON.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { spoiltFile } from './spoilt-files.mjs';

const [seed, from, to, folder] = /** @type {[string, string, string, string]} */ (process.argv.slice(2));
const { liveTensors, loadSafetensors, saveSafetensors, scope, TorchError } = await import('@pipewright/torch');

const path = join(folder, 'spoilt.safetensors');
/** @type {Record<string, { loaded: number, refused: number }>} */
const counts = {};
/** @type {string[]} */
const unexpected = [];
const peakMb = () => Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? 0) / 1024;
const before = peakMb();

for (let number = Number(from); number < Number(to); number++) {
  writeFileSync(join(folder, 'at'), String(number));
  const { kind, bytes } = spoiltFile(Number(seed), number);
  writeFileSync(path, bytes);
  const count = (counts[kind] ??= { loaded: 0, refused: 0 });
  const live = liveTensors();
  try {
    scope(() => {
      const tensors = loadSafetensors(path);
      let total = 0;
      for (const tensor of tensors.values()) {
        total += tensor.nbytes;
        tensor.clone(); // reads every byte
      }
      if (total > bytes.length) unexpected.push(`${number} (${kind}): ${total} bytes out of a file of ${bytes.length}`);
      saveSafetensors(join(folder, 'again.safetensors'), tensors);
    });
    count.loaded++;
    if (kind !== 'sound' && kind !== 'noise') continue;
    if (kind === 'noise') unexpected.push(`${number}: noise was loaded`);
  } catch (error) {
    count.refused++;
    const known = error instanceof TorchError && error.code === 'SAFETENSORS' && error.message.length < 2000;
    if (kind === 'sound' || !known) unexpected.push(`${number} (${kind}): ${String(error).slice(0, 300)}`);
  }
  if (liveTensors() !== live) unexpected.push(`${number} (${kind}): ${liveTensors() - live} tensors were left behind`);
}
console.log(JSON.stringify({ counts, unexpected, grownMb: peakMb() - before }));
