/** @file Writing weights as Hugging Face tools read them: all ranks write, or none has. */
import { join } from 'node:path';
import { distributed, noGrad, saveSafetensors, scope, type Tensor } from '@pipewright/torch';
import { makeFolder, writeFile } from '@pipewright/torch/files';
import { checkPath, checkRequired } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { INDEX } from '../format/file-names.ts';
import { stagesOf, weightsOf } from '../state/state-tensors.ts';
import { holdingsOf, planWrites, type RankHoldings } from '../writing/plan.ts';
import { type Rename, type RenamedTensor, renamed } from './rename.ts';
import type { WeightsOptions } from './weights.ts';
import { hiddenBy } from './weights-folder.ts';
import { putTogether, type WholeWeight, wholeWeights } from './whole-weights.ts';

const where = 'saveWeights';

/** How weights are written. */
export interface SaveWeightsOptions extends WeightsOptions {
  /** Small text files beside them, such as 'config.json'; values that are no texts become JSON. */
  readonly files?: Readonly<Record<string, unknown>> | undefined;
  /** All ranks of the run; default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
}

/**
 * Writes the weights of all ranks' stages as Hugging Face tools read them: safetensors files and an index. Sharded parameters are
 * put together, each by one of the ranks that hold a part. All ranks call it.
 *
 * @example saveWeights('models/mine', { stages, rename: { blocks: 'transformer.h' }, files: { 'config.json': config } })
 */
export function saveWeights(path: string, options: SaveWeightsOptions): void {
  checkPath(where, 'the folder', path);
  checkRequired(where, options, ['stages', 'rename', 'files', 'group']);
  const stages = stagesOf(where, options.stages);
  const weights = weightsOf(stages);
  const world = options.group ?? (distributed.isInitialized() ? distributed.getDefaultGroup() : null);
  const group = world !== null && world.size > 1 ? world : null;
  const ranks = gather<RankHoldings & Troubled>(group, { ...holdingsOf(stages, weights), trouble: hiddenBy(path) });
  refuse(ranks);
  const wholes = wholeWeights(ranks, planWrites(ranks));
  const names = namesOf(wholes, options.rename);
  const rank = group?.rank ?? 0;
  const writers = [...new Set(wholes.filter(({ key }) => names.has(key)).map(({ writer }) => writer))].sort(
    (a, b) => a - b,
  );
  const pad = (value: number): string => String(value).padStart(5, '0');
  const fileOf = (writer: number): string =>
    `model-${pad(writers.indexOf(writer) + 1)}-of-${pad(writers.length)}.safetensors`;
  const own: Record<string, number> = {};
  const trouble = noGrad(() =>
    scope(() => {
      const tensors = new Map<string, Tensor>();
      for (const whole of wholes) {
        const other = names.get(whole.key);
        const tensor = other === undefined ? null : putTogether(whole, weights, group);
        if (other === undefined || tensor === null) continue;
        tensors.set(other.name, other.transpose === true ? tensor.t() : tensor);
        own[other.name] = tensor.nbytes;
      }
      return attempt(() => {
        if (tensors.size === 0) return;
        makeFolder(path);
        saveSafetensors(join(path, fileOf(rank)), tensors, { format: 'pt' });
      });
    }),
  );
  const all = gather<Troubled & { readonly own: Record<string, number> }>(group, { own, trouble });
  refuse(all);
  const index = rank === 0 ? attempt(() => writeIndex(path, all, fileOf, options)) : null;
  refuse(gather<Troubled>(group, { trouble: index }));
}

/** Why a rank cannot go on; null where it can. */
interface Troubled {
  readonly trouble: string | null;
}

/** What every rank says. */
function gather<T>(group: distributed.ProcessGroup | null, value: T): T[] {
  return group === null ? [value] : (group.allGatherObject(value as distributed.Json) as T[]);
}

/** Fails on all ranks where one of them has a problem. */
function refuse(ranks: readonly Troubled[]): void {
  const rank = ranks.findIndex(({ trouble }) => trouble !== null);
  if (rank < 0) return;
  throw new PipelineError(
    'CANNOT_SAVE',
    `${where}: ${ranks.length > 1 ? `rank ${rank}: ` : ''}${ranks[rank]!.trouble}`,
    {
      rank,
    },
  );
}

/** What went wrong in writing; null where nothing did. */
function attempt(write: () => void): string | null {
  try {
    write();
    return null;
  } catch (error) {
    return `the weights were not written: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** The names of weights in the files; of those that `rename` leaves out none. */
function namesOf(wholes: readonly WholeWeight[], rename: Rename | undefined): Map<string, RenamedTensor> {
  const keys = new Map<string, string>();
  return new Map(
    wholes.flatMap(({ key }): [string, RenamedTensor][] => {
      const other = renamed(where, rename, key);
      if (other === null) return [];
      const before = keys.get(other.name);
      if (before !== undefined)
        throw new PipelineError(
          'NAME_CLASH',
          `${where}: rename gives '${before}' and '${key}' the same name '${other.name}', and a file holds one tensor of a name; give each its own, or null to leave it out`,
          { names: [before, key] },
        );
      keys.set(other.name, key);
      return [[key, other]];
    }),
  );
}

/** The index and the text files beside it. */
function writeIndex(
  path: string,
  all: readonly { readonly own: Record<string, number> }[],
  fileOf: (writer: number) => string,
  { files }: SaveWeightsOptions,
): void {
  const weight_map = Object.fromEntries(
    all.flatMap(({ own }, writer) => Object.keys(own).map((name) => [name, fileOf(writer)] as const)).sort(),
  );
  const total_size = all.flatMap(({ own }) => Object.values(own)).reduce((sum, bytes) => sum + bytes, 0);
  makeFolder(path);
  writeFile(join(path, INDEX), `${JSON.stringify({ metadata: { total_size }, weight_map }, null, 2)}\n`);
  for (const [name, content] of Object.entries(files ?? {}))
    writeFile(join(path, name), typeof content === 'string' ? content : `${JSON.stringify(content, null, 2)}\n`);
}
