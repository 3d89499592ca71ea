/** @file A plan as data: a pipeline that was chosen for a model and a machine, and what is predicted of it. Plain JSON. */

import { ScheduleError, show } from '../model/errors.ts';
import type { ScheduleJson } from '../model/schedule.ts';
import { type ShardingLevel, shardingLevels } from '../parallel/data-parallel.ts';

/** A stage's costs for one microbatch. Seconds and bytes. */
export interface StageCosts {
  /** The forward, the input half and the weight half of the backward. */
  readonly F: number;
  readonly I: number;
  readonly W: number;
  /** The whole backward, where it was measured; else `I + W`. */
  readonly B?: number;
  /** Seconds from the start of the whole backward until the gradients of the input are sent, where they leave before its end. */
  readonly inputGradient?: number;
  /** Bytes kept from the forward until the backward. */
  readonly activation: number;
  /** Bytes of these that stay from the input half until the weight half. */
  readonly retained: number;
  readonly parameters: number;
  /** Bytes of what the stage before sends it. */
  readonly input: number;
  /** Where the forward is computed again: bytes beyond `activation` that are there while it is. */
  readonly again?: number;
}

/** Values that stages exchange, or their gradients, for one microbatch: their bytes, and what a stage still holds after the input half. */
export interface HeldValues {
  readonly bytes: number;
  readonly kept: number;
}

/** What a stage takes from one other stage, for one microbatch. */
export interface StageInputMemory extends HeldValues {
  readonly stage: number;
  /** The gradients that go back. */
  readonly gradient: HeldValues;
}

/** What a stage holds for one microbatch, counted in bytes. */
export interface StageMemory {
  /** After the forward: inputs and what autograd keeps; outputs only as far as autograd keeps them. */
  readonly forward: number;
  /** After the input half, gradients that go back not counted unless the weight half needs them. */
  readonly inputHalf: number;
  /** After both halves, until the end of the step: the loss. */
  readonly end: number;
  readonly inputs: readonly StageInputMemory[];
  /** Outputs; `saved` is what autograd keeps of them after the forward. */
  readonly output: HeldValues & { readonly saved: number; readonly gradient: HeldValues };
}

/** What a plan was made for, as far as its simulation needs it. */
export interface PlanMachine {
  /** Bytes that each rank may hold. */
  readonly memory?: number | readonly number[] | undefined;
  /** How much longer than measured each rank takes. */
  readonly slowness?: readonly number[] | undefined;
  /** Bytes per second between ranks, and seconds until a message is there. */
  readonly bandwidth?: number | undefined;
  readonly latency?: number | undefined;
  /** Links that differ from the rest. */
  readonly links?:
    | readonly {
        readonly from: number;
        readonly to: number;
        readonly latency?: number;
        readonly bandwidth?: number;
      }[]
    | undefined;
}

/** Copies of a pipeline that train on different rows, each rank of one beside the same rank of the others. */
export interface PlanParallel {
  /** How many pipelines there are. */
  readonly replicas: number;
  /**
   * What they divide among them: nothing (`replicate`), the optimizer's states, also gradients, also parameters. These are then whole
   * only while no other stage of the rank is needed.
   */
  readonly level: ShardingLevel;
}

/** What is predicted of a plan. */
export interface Prediction {
  /** Seconds of a step, without the optimizer. */
  readonly step: number;
  readonly rowsPerSecond: number;
  /** Idle share of the step. */
  readonly bubble: number;
  /** Highest bytes of each rank: parameters, gradients, optimizer state, and what is held for backwards. */
  readonly peak: readonly number[];
  /** Of these, the most that is held for backwards at the end of an action. */
  readonly held: readonly number[];
  /** Highest bytes of the parameters of each rank: its shards and gathered stages, or its whole stages. */
  readonly parameters?: readonly number[];
  /** Messages of a step, and their bytes, of one pipeline. */
  readonly messages: number;
  readonly messageBytes: number;
}

/** A pipeline, and what is predicted of it. Plain JSON. */
export interface PipelinePlan {
  readonly version: 1;
  /** The name of the schedule; `searched` where the order was found by search. */
  readonly schedule: string;
  /** The order, where the name does not say it: found by search, or dependent on costs. */
  readonly order?: ScheduleJson;
  /** Ranks of a pipeline; there are `replicas` times as many where the plan has `dataParallel`. */
  readonly ranks: number;
  /** Copies of the pipeline: a mesh of `ranks` x `replicas`, the pipeline outermost. Absent: one. */
  readonly dataParallel?: PlanParallel;
  readonly stages: number;
  readonly stageToRank: readonly number[];
  /** Microbatches of each pipeline. */
  readonly microbatches: number;
  /** Rows of a microbatch. */
  readonly rows: number;
  /** The units of each stage, by name. */
  readonly units: readonly (readonly string[])[];
  /** The node that each stage but the first begins with: where the graph is cut. */
  readonly cutBefore: readonly string[];
  /** Stages that compute their forward again. */
  readonly recompute: readonly boolean[];
  /** Seconds and bytes of every stage for one microbatch. */
  readonly costs: readonly StageCosts[];
  /** What every stage holds, counted, once the stages themselves were measured. */
  readonly memory?: readonly StageMemory[];
  /** Bytes of parameters, gradients and optimizer state for each byte of parameters. */
  readonly stateFactor: number;
  readonly machine: PlanMachine;
  readonly predicted: Prediction;
  /** Why it is where it is in the list. */
  readonly why: string;
}

/** Largest plan that is read: ranks, stages, microbatches. */
const most = 1_000_000;

/**
 * A plan from its text or from parsed JSON; what is not one is refused with what is wrong.
 * @example const plan = readPlan(readFileSync('plan.json', 'utf8'))
 */
export function readPlan(text: string | object): PipelinePlan {
  let data: unknown = text;
  if (typeof text === 'string') {
    try {
      data = JSON.parse(text);
    } catch (cause) {
      throw new ScheduleError(
        'BAD_PLAN',
        `readPlan: not JSON (${(cause as Error).message}); give what pipewright plan wrote`,
      );
    }
  }
  checkPlan('readPlan', data);
  return data;
}

/** Refuses what is not a plan. @example checkPlan('comparePlan', plan) */
export function checkPlan(where: string, plan: unknown): asserts plan is PipelinePlan {
  checkUnpredicted(where, plan);
  const problem = predictionProblemOf(plan);
  if (problem !== null) throw new ScheduleError('BAD_PLAN', `${where}: ${problem}; give what pipewright plan wrote`);
}

/** Refuses what is not a plan, whatever is predicted of it. @example checkUnpredicted('predictPlan', plan) */
export function checkUnpredicted(
  where: string,
  plan: unknown,
): asserts plan is Omit<PipelinePlan, 'predicted' | 'why'> {
  const problem = problemOf(plan);
  if (problem !== null) throw new ScheduleError('BAD_PLAN', `${where}: ${problem}; give what pipewright plan wrote`);
}

/** Whether a value looks like a plan rather than a schedule or a recording; `readPlan` checks it. */
export function isPlan(value: unknown): value is PipelinePlan {
  return isObject(value) && 'version' in value && 'cutBefore' in value && 'predicted' in value;
}

type Fields = Readonly<Record<string, unknown>>;

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null;
}

function problemOf(plan: unknown): string | null {
  if (!isObject(plan) || Array.isArray(plan)) return `a plan is an object, not ${show(plan)}`;
  if (plan['version'] !== 1) return `version is ${show(plan['version'])}, and 1 is known here`;
  const { ranks, stages, microbatches, rows } = plan;
  for (const [name, value] of Object.entries({ ranks, stages, microbatches, rows }))
    if (!isSize(value)) return `${name} is ${show(value)}, not a whole number from 1 on`;
  if (typeof plan['schedule'] !== 'string') return `schedule is ${show(plan['schedule'])}, not a name`;
  const problem = listProblemOf(plan, Number(ranks), Number(stages)) ?? machineProblemOf(plan['machine']);
  if (problem !== null) return problem;
  const { memory, dataParallel: parallel, stateFactor } = plan;
  if (memory !== undefined) {
    if (!Array.isArray(memory) || memory.length !== stages) return `memory has not ${String(stages)} entries`;
    const wrong = memory.findIndex((value) => !isStageMemory(value));
    if (wrong >= 0) return `memory[${wrong}] is ${show(memory[wrong])}, not what a stage holds`;
  }
  if (parallel !== undefined && !isParallel(parallel))
    return `dataParallel is ${show(parallel)}, not { replicas, level } with a level of ${shardingLevels.join(', ')}`;
  return isAmount(stateFactor) ? null : `stateFactor is ${show(stateFactor)}, not a number`;
}

/** Checks the lists with an entry for each stage or border. */
function listProblemOf(plan: Fields, ranks: number, stages: number): string | null {
  const lists: [string, number, (value: unknown) => boolean][] = [
    ['stageToRank', stages, (value) => isCount(value) && value < ranks],
    ['cutBefore', stages - 1, (value) => typeof value === 'string'],
    ['recompute', stages, (value) => typeof value === 'boolean'],
    ['units', stages, (value) => Array.isArray(value) && value.every((name) => typeof name === 'string')],
    ['costs', stages, (value) => hasNumbers(value, ['F', 'I', 'W', 'activation', 'retained', 'parameters', 'input'])],
  ];
  for (const [name, length, isFine] of lists) {
    const list = plan[name];
    if (!Array.isArray(list) || list.length !== length) return `${name} has not ${length} entries`;
    const wrong = list.findIndex((value) => !isFine(value));
    if (wrong >= 0) return `${name}[${wrong}] is ${show(list[wrong])}`;
  }
  return null;
}

function machineProblemOf(machine: unknown): string | null {
  if (!isObject(machine)) return 'machine is missing';
  const { memory: limit, slowness, links } = machine;
  if (limit !== undefined && ![limit].flat().every((bytes) => typeof bytes === 'number'))
    return `machine.memory is ${show(limit)}, not a number of bytes for all ranks or for each`;
  for (const [name, list] of Object.entries({ slowness, links }))
    if (list !== undefined && !Array.isArray(list)) return `machine.${name} is ${show(list)}, not an array`;
  return null;
}

function predictionProblemOf(plan: {
  readonly ranks: number;
  readonly predicted?: unknown;
  readonly why?: unknown;
}): string | null {
  const { ranks, predicted, why } = plan;
  if (!hasNumbers(predicted, ['step', 'rowsPerSecond', 'bubble', 'messages', 'messageBytes']))
    return 'predicted lacks a number';
  const { peak, held } = predicted;
  for (const [name, list] of [
    ['peak', peak],
    ['held', held],
  ] as const)
    if (!Array.isArray(list) || list.length !== ranks || !list.every(isAmount))
      return `predicted.${name} has not a number for each of the ${ranks} ranks`;
  return typeof why === 'string' ? null : 'why is not a text';
}

function isParallel(value: unknown): boolean {
  return isObject(value) && isSize(value['replicas']) && shardingLevels.some((level) => level === value['level']);
}

function isAmount(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0;
}

function isCount(value: unknown): value is number {
  return isAmount(value) && Number.isInteger(value);
}

/** Whether a value counts ranks, stages or rows: a whole number from 1 on. */
function isSize(value: unknown): value is number {
  return isCount(value) && value >= 1 && value <= most;
}

function isStageMemory(value: unknown): boolean {
  if (!hasNumbers(value, ['forward', 'inputHalf', 'end'])) return false;
  const { inputs, output } = value;
  const isExchanged = (one: unknown, names: readonly string[]): boolean =>
    hasNumbers(one, names) && hasNumbers(one['gradient'], ['bytes', 'kept']);
  return (
    Array.isArray(inputs) &&
    inputs.every((input) => isExchanged(input, ['stage', 'bytes', 'kept'])) &&
    isExchanged(output, ['bytes', 'kept', 'saved'])
  );
}

function hasNumbers(value: unknown, names: readonly string[]): value is Fields {
  return isObject(value) && names.every((name) => isAmount(value[name]));
}
