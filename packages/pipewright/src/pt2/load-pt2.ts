/** @file Loads a `.pt2` file of `torch.export.save` as a module: weights are mapped, not read; no pickle is opened. */
import { MappedFile, nn, Tensor, unscoped } from '@pipewright/torch';
import { checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { passedCode } from '../base/passed-code.ts';
import { GraphModule } from '../execute/graph-module.ts';
import { Pt2Archive } from './archive.ts';
import { pt2Error, shown } from './pt2-error.ts';
import { type ProgramTensor, readProgram } from './read-program.ts';
import { readTable, type StoredTensor, type UnreadableTensor } from './stored-tensors.ts';

/** How a `.pt2` file is loaded. */
export interface LoadPt2Options {
  /** Which model of the file. Default: the one called `model`, or the only one. */
  readonly model?: string | undefined;
  /** Checks the checksums of all tensors, which reads the whole file. Default false: the program is always checked. */
  readonly verify?: boolean | undefined;
}

/**
 * Loads a model that PyTorch exported. Its weights are mapped from the file and read when they are first used; training
 * changes memory, never the file. Operators that cannot be run are named here, all at once.
 *
 * @example const model = loadPt2('model.pt2'); const y = model.forward(x)
 */
export function loadPt2(path: string, options: LoadPt2Options = {}): GraphModule {
  if (typeof path !== 'string' || path === '')
    throw new PipelineError('BAD_ARGUMENT', `loadPt2: expected the path of a .pt2 file, got ${show(path)}`);
  checkOptions('loadPt2', options, ['model', 'verify']);
  using archive = Pt2Archive.open(path, options.model);
  const { graph, tensors } = readProgram(archive.program());
  const tables = { weights: readTable(archive, 'weights'), constants: readTable(archive, 'constants') };
  const chosen = chooseTensors(path, tensors, tables);
  if (options.verify === true)
    for (const entry of new Set([...chosen.values()].map(({ stored }) => stored.entry))) archive.zip.verify(entry);
  const module = unscoped(() => new GraphModule(graph, mapTensors(path, chosen)));
  try {
    return module.compile();
  } catch (error) {
    module.dispose();
    if (error instanceof PipelineError)
      throw new PipelineError(passedCode(error.code), `${path}: ${error.message}`, error.details);
    throw error;
  }
}

interface Chosen {
  readonly stored: StoredTensor;
  readonly isParameter: boolean;
  readonly persistent: boolean;
}

type Table = ReadonlyMap<string, StoredTensor | UnreadableTensor>;

/** The tensors that the program reads, in its order, then those that it does not use. */
function chooseTensors(
  path: string,
  wanted: readonly ProgramTensor[],
  tables: { readonly weights: Table; readonly constants: Table },
): Map<string, Chosen> {
  const chosen = new Map<string, Chosen>();
  for (const { target, role, persistent, table } of wanted) {
    const found = tables[table].get(target);
    if (found === undefined) throw pt2Error('MISSING', path, `the file has no values for ${role} ${shown(target)}`);
    if ('problem' in found) throw found.problem;
    chosen.set(target, { stored: found, isParameter: role === 'parameter', persistent });
  }
  for (const [name, stored] of tables.weights)
    if (!chosen.has(name) && !('problem' in stored))
      chosen.set(name, { stored, isParameter: stored.isParameter, persistent: true });
  return chosen;
}

/** The tensors over the mapped file. Names of the same bytes in the same shape are one tensor: tied weights stay tied. */
function mapTensors(path: string, chosen: ReadonlyMap<string, Chosen>): Map<string, Tensor> {
  using file = MappedFile.open(path);
  const storages = new Map<string, Tensor>();
  const members = new Map<string, nn.Parameter | nn.Buffer>();
  const state = new Map<string, Tensor>();
  try {
    for (const [name, { stored, isParameter, persistent }] of chosen) {
      const { entry, dtype, shape, stride, storageOffset, requiresGrad } = stored;
      const key = JSON.stringify([entry.name, dtype.name, shape, stride, storageOffset, isParameter, persistent]);
      let member = members.get(key);
      if (member === undefined) {
        const where = `${entry.name} ${dtype.name}`;
        let storage = storages.get(where);
        if (storage === undefined) {
          storage = file.tensor({ offset: entry.offset, dtype, shape: [entry.size / dtype.itemSize] });
          storages.set(where, storage);
        }
        using view = storage.asStrided([...shape], [...stride], storageOffset);
        const learns = requiresGrad && (dtype.isFloatingPoint || dtype.isComplex);
        member = isParameter ? new nn.Parameter(view, { requiresGrad: learns }) : new nn.Buffer(view, { persistent });
        members.set(key, member);
      }
      state.set(name, member);
    }
    return state;
  } catch (error) {
    for (const member of members.values()) member.dispose();
    throw error;
  } finally {
    for (const storage of storages.values()) storage.dispose();
  }
}
