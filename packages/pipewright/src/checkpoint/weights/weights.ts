/** @file Weights in the format of Hugging Face: every stage loads its own, and all ranks write theirs. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { distributed, noGrad, saveSafetensors, scope, type Tensor } from '@pipewright/torch';
import { writeFile } from '@pipewright/torch/files';
import { checkPath, checkRequired, didYouMean } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { INDEX } from '../format/file-names.ts';
import { beginOf, boxOf } from '../format/piece.ts';
import { type StateTensor, stagesOf, weightsOf } from '../state/state-tensors.ts';
import { holdingsOf, planWrites, type RankHoldings } from '../writing/plan.ts';
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

/** How weights are written. */
export interface SaveWeightsOptions extends WeightsOptions {
  /** Small text files beside them, such as 'config.json'; values that are no texts become JSON. */
  readonly files?: Readonly<Record<string, unknown>> | undefined;
  /** All ranks of the run; default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
}

/**
 * Writes the weights of all ranks' stages as Hugging Face tools read them: a safetensors file of each rank and an index. All ranks
 * call it.
 *
 * @example saveWeights('models/mine', { stages, rename: { blocks: 'transformer.h' }, files: { 'config.json': config } })
 */
export function saveWeights(path: string, options: SaveWeightsOptions): void {
  const where = 'saveWeights';
  checkPath(where, 'the folder', path);
  checkRequired(where, options, ['stages', 'rename', 'files', 'group']);
  const stages = stagesOf(where, options.stages);
  const weights = weightsOf(stages);
  const world = options.group ?? (distributed.isInitialized() ? distributed.getDefaultGroup() : null);
  const group = world !== null && world.size > 1 ? world : null;
  const holdings = holdingsOf(stages, weights);
  const ranks =
    group === null ? [holdings] : group.allGatherObject<RankHoldings>(holdings as unknown as distributed.Json);
  const plan = planWrites(ranks);
  if (!plan.isWhole)
    throw new PipelineError(
      'CHECKPOINT_STATE',
      `${where}: parameters are sharded; save a checkpoint and export it: pipewright checkpoint export-hf`,
    );
  const rank = group?.rank ?? 0;
  mkdirSync(path, { recursive: true });
  const nameOf = (writer: number): string => {
    const pad = (value: number): string => String(value).padStart(5, '0');
    return `model-${pad(plan.writers.model.indexOf(writer) + 1)}-of-${pad(plan.writers.model.length)}.safetensors`;
  };
  const own: Record<string, number> = {};
  noGrad(() =>
    scope(() => {
      const tensors = new Map<string, Tensor>();
      for (const { at, key } of plan.writes[rank] ?? []) {
        const other = renamed(where, options.rename, key);
        if (other === null) continue;
        const tensor = weights[at]!.tensor.detach();
        tensors.set(other.name, other.transpose === true ? tensor.t() : tensor);
        own[other.name] = tensor.nbytes;
      }
      if (plan.writers.model.includes(rank)) saveSafetensors(join(path, nameOf(rank)), tensors, { format: 'pt' });
    }),
  );
  const all = group === null ? [own] : (group.allGatherObject(own) as Record<string, number>[]);
  if (rank !== 0) return;
  const weight_map = Object.fromEntries(
    all.flatMap((names, writer) => Object.keys(names).map((name) => [name, nameOf(writer)] as const)).sort(),
  );
  const total_size = all.flatMap((names) => Object.values(names)).reduce((sum, bytes) => sum + bytes, 0);
  writeFile(join(path, INDEX), `${JSON.stringify({ metadata: { total_size }, weight_map }, null, 2)}\n`);
  for (const [name, content] of Object.entries(options.files ?? {}))
    writeFile(join(path, name), typeof content === 'string' ? content : `${JSON.stringify(content, null, 2)}\n`);
}
