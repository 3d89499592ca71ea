/** @file The model that is planned: a `.pt2` file, or a module of the user's; and its microbatches. */
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { nn, Tensor } from '@pipewright/torch';
import type { GraphProgram, TensorMeta } from 'pipewright';
import { UsageError } from '../../shared/usage-error.ts';

/** What is named on the command line; travels to ranks. */
export interface ModelSource {
  readonly file: string;
  readonly model?: string | undefined;
  readonly sizes: Readonly<Record<string, number>>;
  readonly inputs?: string | undefined;
}

/** A microbatch. */
export interface Microbatch {
  readonly args: readonly unknown[];
  readonly target: unknown;
}

/** A model with its microbatches. */
export interface OpenedModel {
  /** Rows that it takes, where it takes only so many. */
  readonly fixedRows: number | null;
  readonly lossFn: ((output: unknown, target: unknown) => Tensor) | undefined;
  program(rows: number): GraphProgram;
  microbatch(rows: number): Microbatch;
}

/** Opens a model. */
export async function openModel(source: ModelSource): Promise<OpenedModel> {
  return /\.pt2$/i.test(source.file) ? openPt2(source) : openModule(source);
}

async function openModule({ file }: ModelSource): Promise<OpenedModel> {
  if (!/\.[cm]?[jt]s$/i.test(file))
    throw new UsageError(
      `${existsSync(file) ? `${file} is no model` : `there is no file ${file}`}: give a .pt2 file, or a JavaScript or TypeScript module`,
    );
  const { nn, manualSeed } = await import('@pipewright/torch');
  const { traceModule } = await import('pipewright');
  const { allowTypeScript } = await import('pipewright/launch');
  let found: Record<string, unknown>;
  try {
    allowTypeScript(file);
    found = (await import(pathToFileURL(resolve(file)).href)) as Record<string, unknown>;
  } catch (cause) {
    throw new UsageError(`cannot load ${file}: ${existsSync(file) ? whyNotLoaded(cause) : 'there is no such file'}`);
  }
  const { batch, lossFn } = found;
  manualSeed(0); // all ranks make the same model
  const model =
    typeof found['model'] === 'function' ? ((await (found['model'] as () => unknown)()) as unknown) : found['model'];
  if (!(model instanceof nn.Module))
    throw new UsageError(`${file} exports no model; export an nn.Module, or a function that returns one, as model`);
  if (typeof batch !== 'function')
    throw new UsageError(`${file} exports no batch; export a function from rows to { args, target } as batch`);
  if (lossFn !== undefined && typeof lossFn !== 'function')
    throw new UsageError(`${file}: lossFn is not a function of output and target`);
  const microbatch = (rows: number): Microbatch => {
    const made = (batch as (rows: number) => unknown)(rows) as Partial<Microbatch> | null;
    if (!Array.isArray(made?.args))
      throw new UsageError(`${file}: batch(${rows}) returned no args; return { args: [x], target: y }`);
    return { args: made.args as unknown[], target: made.target };
  };
  return {
    fixedRows: null,
    lossFn: lossFn as OpenedModel['lossFn'],
    program: (rows) => traceModule(model as nn.Module, microbatch(rows).args as unknown[]),
    microbatch,
  };
}

/** Why a module that is there could not be loaded; of an import that was not found, which one. */
function whyNotLoaded(cause: unknown): string {
  const message = cause instanceof Error ? cause.message : String(cause);
  const [, kind, name] = /^Cannot find (package|module) '([^']+)'/.exec(message) ?? [];
  if (kind === 'package') return `it imports the package ${name}, which is not installed; npm install ${name}`;
  return kind === 'module' ? `it imports ${name}, which does not exist` : message;
}

async function openPt2({ file, model, sizes, inputs }: ModelSource): Promise<OpenedModel> {
  const { loadPt2, placeholdersOf, parseExpression, evaluate } = await import('pipewright');
  const torch = await import('@pipewright/torch');
  const module = loadPt2(file, { model });
  const all = { removeDuplicate: false };
  const state = new Map<string, Tensor>([...module.namedParameters(all), ...module.namedBuffers(all)]);
  const program: GraphProgram = { graph: module.graph, state };
  const metas = placeholdersOf(program.graph).flatMap(({ meta }) =>
    meta !== null && meta !== undefined && 'shape' in meta ? [meta as TensorMeta] : [],
  );
  const first = metas[0]?.shape[0];
  if (first === undefined) throw new UsageError(`${file} takes no tensor with rows`);
  const given = inputs === undefined ? null : [...torch.loadSafetensors(inputs).values()];
  const sizeOf = (dim: number | string, rows: number): number => {
    if (typeof dim === 'number') return dim;
    if (dim === first) return rows;
    const expression = parseExpression(dim);
    const symbols = new Map([...Object.entries({ [String(first)]: rows }), ...Object.entries(sizes)]);
    const value = expression === undefined ? undefined : evaluate(expression, symbols);
    if (value === undefined)
      throw new UsageError(`${file}: the size ${dim} of an input is not known; give it: --size ${dim}=8`);
    return value;
  };
  return {
    fixedRows: typeof first === 'number' ? first : null,
    lossFn: undefined,
    program: () => program,
    microbatch: (rows) => ({
      target: undefined,
      args: metas.map(({ dtype, shape }, i) => {
        const example = given?.[i];
        if (example !== undefined) return (example as Tensor).narrow(0, 0, rows);
        const dims = shape.map((dim) => sizeOf(dim, rows));
        return /^(float|bfloat)/.test(dtype)
          ? torch.randn(dims, { dtype: torch.dtypes.get(dtype) })
          : torch.zeros(dims, { dtype: torch.dtypes.get(dtype) });
      }),
    }),
  };
}
