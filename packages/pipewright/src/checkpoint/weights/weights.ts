/** @file Weights of others, such as those of Hugging Face: every stage loads its own. */
import { noGrad, scope } from '@pipewright/torch';
import { checkPath, checkRequired, didYouMean } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { beginOf, boxOf } from '../format/piece.ts';
import { type StateTensor, stagesOf, weightsOf } from '../state/state-tensors.ts';
import { type Rename, type RenamedTensor, renamed } from './rename.ts';
import { WeightsFolder } from './weights-folder.ts';

/** The stages whose weights are loaded or written, and their names in files. */
export interface WeightsOptions {
  /** The stages of this rank. */
  readonly stages: PipelineStage | readonly PipelineStage[];
  /** From names of the model to names in the files. */
  readonly rename?: Rename | undefined;
}

/** How weights are loaded. */
export interface LoadWeightsOptions extends WeightsOptions {
  /** Parameters that the files do not have are an error; default true. */
  readonly strict?: boolean | undefined;
}

/** What was loaded. */
export interface LoadedWeights {
  /** Bytes that this rank has read. */
  readonly bytes: number;
  /** Names in the model that the files do not have. */
  readonly missing: readonly string[];
}

/**
 * Loads the weights of this rank's stages from a folder with safetensors files, as Hugging Face has them; only the bytes that the
 * stages need are read. Types are converted.
 *
 * @example loadWeights('models/gpt2', { stages: stage, rename: { blocks: 'transformer.h' } })
 */
export function loadWeights(path: string, options: LoadWeightsOptions): LoadedWeights {
  const where = 'loadWeights';
  checkPath(where, 'the folder', path);
  checkRequired(where, options, ['stages', 'rename', 'strict']);
  const weights = weightsOf(stagesOf(where, options.stages));
  using folder = new WeightsFolder(path);
  const found = weights.map((weight) => ({ weight, source: findSource(where, { weight, folder, options }) }));
  const missing = found.flatMap(({ weight, source }) => (source === undefined ? [weight.key] : []));
  if (missing.length > 0 && options.strict !== false) {
    const [first] = missing as [string];
    const wanted = renamed(where, options.rename, first)?.name ?? first;
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `${where}: ${path} has no '${wanted}'${didYouMean(wanted, folder.names)} for '${first}'${missing.length > 1 ? `, and ${missing.length - 1} more are missing` : ''}; give { rename } where names differ, or { strict: false } to leave them as they are`,
      { names: missing },
    );
  }
  let bytes = 0;
  noGrad(() => {
    for (const { weight, source } of found)
      if (source !== undefined && source !== null)
        scope(() => {
          const { tensor, part } = weight;
          const box = boxOf(
            source.transpose === true ? folder.read(source.name).t() : folder.read(source.name),
            beginOf(part),
            part.local,
          );
          bytes += box.nbytes;
          tensor.detach().copy_(box);
        });
  });
  return { bytes, missing };
}

/** Where a weight is stored; undefined if it is missing, null if it is to keep its value. */
function findSource(
  where: string,
  { weight, folder, options }: { weight: StateTensor; folder: WeightsFolder; options: WeightsOptions },
): RenamedTensor | null | undefined {
  for (const name of [weight.key, ...weight.aliases]) {
    const other = renamed(where, options.rename, name);
    if (other === null) return null;
    const entry = folder.entry(other.name);
    if (entry === undefined) continue;
    const stored = other.transpose === true ? [...entry.shape].reverse() : entry.shape;
    if (stored.join() === weight.part.shape.join()) return other;
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `${where}: '${name}' is [${weight.part.shape.join(', ')}] here, '${other.name}' of ${folder.path} is [${entry.shape.join(', ')}]; where it lies transposed, let rename give { name, transpose: true }`,
      { name },
    );
  }
  return undefined;
}
