/** @file How a stage is made: its options, and the checks of them. */
import { type Device, type distributed, type nn, Tensor } from '@pipewright/torch';
import { isGroup, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';
import { checkNames, type StageNames } from './names.ts';
import type { StageInput } from './wiring.ts';

/** How a stage is connected and run. */
export interface PipelineStageOptions {
  /** Where the module lives; parameters and buffers are moved there. Default: where they are. */
  readonly device?: Device | undefined;
  /** The ranks of the pipeline. Default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /** Where the positional inputs come from. Default: all that the stage before returns. */
  readonly inputs?: readonly StageInput[] | undefined;
  /** Which of the step's named inputs the module takes, as an object after the positional ones. Default: all given here. */
  readonly kwargs?: readonly string[] | undefined;
  /** Tensors (meta ones will do) like the inputs of one microbatch: whatever differs in type or shape is an error. */
  readonly inputArgs?: Tensor | readonly Tensor[] | undefined;
  /** Tensors like the outputs of one microbatch. */
  readonly outputArgs?: Tensor | readonly Tensor[] | undefined;
  /** Parameters that other stages hold as well: tie name by parameter name. Their gradients are summed over all holders. */
  readonly ties?: Readonly<Record<string, string>> | undefined;
  /**
   * Names of the whole model for those in the module: { 'blocks.0': 'blocks.4' }, or a function. Checkpoints know parameters by
   * them. Default: as they are.
   */
  readonly names?: StageNames | undefined;
  /** Keeps only the inputs of a microbatch and computes the rest again in its backward. */
  readonly checkpoint?: boolean | undefined;
  /** Gives the module the named inputs `pipelineStageIndex` and `pipelineMicrobatchIndex`. */
  readonly passStageAndMicrobatchIndices?: boolean | undefined;
  /** Called after each backward; what it returns computes the weight gradients that the module has put off. */
  readonly dwBuilder?: (() => () => void) | undefined;
}

export const stageOptionNames: readonly string[] = [
  'device',
  'group',
  'inputs',
  'kwargs',
  'inputArgs',
  'outputArgs',
  'ties',
  'names',
  'checkpoint',
  'passStageAndMicrobatchIndices',
  'dwBuilder',
];

/** Refuses options of the wrong kinds. */
export function checkStageOptions(stage: number, options: PipelineStageOptions): void {
  const refuse = (name: string, value: unknown, wanted: string): never => {
    throw new PipelineError('BAD_OPTION', `PipelineStage ${stage}: ${name} is ${show(value)}; give ${wanted}`, {
      stage,
    });
  };
  const { inputs, kwargs, ties, checkpoint, dwBuilder, passStageAndMicrobatchIndices: indices } = options;
  if (
    inputs !== undefined &&
    !(Array.isArray(inputs) && inputs.every((each) => typeof each === 'object' && each !== null))
  )
    refuse('inputs', inputs, 'an array such as [{ stage: 0 }, { stage: 1, output: 2 }]');
  if (kwargs !== undefined && !(Array.isArray(kwargs) && kwargs.every((each) => typeof each === 'string')))
    refuse('kwargs', kwargs, 'an array of names');
  if (ties !== undefined && !(isPlainObject(ties) && Object.values(ties).every((each) => typeof each === 'string')))
    refuse('ties', ties, "an object from parameters to names such as { 'head.weight': 'embedding' }");
  checkNames(stage, options.names);
  if (options.group !== undefined && !isGroup(options.group))
    refuse('group', options.group, 'a process group, as distributed.initProcessGroup() returns it');
  for (const [name, value] of Object.entries({ checkpoint, passStageAndMicrobatchIndices: indices }))
    if (value !== undefined && typeof value !== 'boolean') refuse(name, value, 'true or false');
  if (dwBuilder !== undefined && typeof dwBuilder !== 'function') refuse('dwBuilder', dwBuilder, 'a function');
  for (const name of ['inputArgs', 'outputArgs'] as const) {
    const value = options[name];
    const list: readonly unknown[] = Array.isArray(value) ? value : [value];
    if (value !== undefined && !list.every((each) => each instanceof Tensor))
      refuse(name, value, 'a tensor or an array of tensors');
  }
}

/** Refuses tied names that are no parameters of this stage: those of others do not belong here. */
export function checkTies(stageIndex: number, ties: Readonly<Record<string, string>>, module: nn.Module): void {
  for (const name of Object.keys(ties))
    try {
      module.getParameter(name);
    } catch (cause) {
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineStage ${stageIndex}: ties has '${name}', which is no parameter of its module (${cause instanceof Error ? cause.message : String(cause)}); give each stage the tied parameters that it holds itself, under their names in its module`,
        { stage: stageIndex, name },
        { cause },
      );
    }
}
