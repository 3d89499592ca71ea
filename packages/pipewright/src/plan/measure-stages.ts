/**
 * @file Measures the stages of a pipe as they will run: in the order of the schedule's rows where one is given, each alone else, with
 * what arrives in messages, forward and backward, whole and in halves. What a stage holds after every action is counted, byte by byte.
 */
import { Schedule, type StageCosts, type StageMemory } from '@pipewright/schedule';
import { type distributed, scope, type Tensor } from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { Pipe } from '../pipe/pipe.ts';
import { lossOf, type MeasureOptions } from './measure-units.ts';
import { rehearse, rowsAlone, rowsOf } from './rehearsal.ts';
import { StageRun } from './stage-run.ts';

/** A stage as it was measured. */
export interface MeasuredStage {
  readonly costs: StageCosts;
  /** What it holds; counted on the CPU. */
  readonly memory: StageMemory | null;
}

/** What stages are measured with. */
export interface MeasureStagesOptions<Output = Tensor, Target = Tensor> extends MeasureOptions<Output, Target> {
  /** The order that the stages will run in: `planSchedule(plan)`. Without it each stage runs alone, one microbatch at a time. */
  readonly schedule?: Schedule | undefined;
  /** Ranks that measure side by side, a row each, as they will run; all call it, and all get the same result. */
  readonly group?: distributed.ProcessGroup | undefined;
}

/** Rounds for what the schedule does not do: whole backwards, or halves. */
const fewRounds = 2;

/**
 * The stages of a pipe at the size of an example microbatch.
 *
 * @example const [first] = measureStages(pipeline(program, { plan }), [x], { lossFn, target, schedule: planSchedule(plan) })
 */
export function measureStages<Output = Tensor, Target = Tensor>(
  pipe: Pipe,
  mbArgs: readonly unknown[],
  options: MeasureStagesOptions<Output, Target> = {},
): MeasuredStage[] {
  checkOptions('measureStages', options, ['lossFn', 'target', 'rounds', 'schedule', 'group']);
  checkArgument('measureStages', pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline(model, { plan }) returns');
  checkArgument('measureStages', Array.isArray(mbArgs), ['mbArgs', mbArgs], 'the arguments of one microbatch: [x]');
  const rounds = checkCount('measureStages', 'rounds', options.rounds ?? 5);
  const { schedule, group = null } = options;
  const isSchedule = schedule === undefined || schedule instanceof Schedule;
  checkArgument('measureStages', isSchedule, ['schedule', schedule], 'what planSchedule(plan) returns');
  const stages = schedule?.stages ?? pipe.numStages;
  const fits = stages === pipe.numStages;
  checkArgument(
    'measureStages',
    fits,
    ['schedule.stages', stages],
    `a schedule of the pipe's ${pipe.numStages} stages`,
  );
  const isGroup = group === null || typeof group?.allGatherObject === 'function';
  checkArgument('measureStages', isGroup, ['group', group], 'a process group');
  const takers = takersOf(pipe);
  return scope(() => {
    const outputs: unknown[] = [];
    const runs = Array.from({ length: pipe.numStages }, (_, index): StageRun => {
      const run = new StageRun(pipe, index, {
        args: index === 0 ? mbArgs : [],
        outputs,
        takers: takers[index] ?? [],
        loss: index === pipe.numStages - 1 ? lossOf(options) : undefined,
      });
      outputs.push(run.plain());
      return run;
    });
    const alone = rehearse(runs, rowsAlone(runs.length), {
      rounds: schedule === undefined ? rounds : Math.min(rounds, fewRounds),
      group,
    });
    const inOrder = schedule === undefined ? [] : rehearse(runs, rowsOf(schedule), { rounds, group });
    return runs.map((run, stage): MeasuredStage => {
      const memory = run.waits ? null : run.count();
      const { F = 0, I = 0, W = 0, B = 0, inputGradient } = { ...alone[stage], ...inOrder[stage] };
      // On a GPU gradients leave with the whole backward, and so they do where nothing goes back.
      const isEarly = !run.waits && inputGradient !== undefined && run.inputBytes > 0;
      const costs: StageCosts = {
        F,
        I,
        W,
        B,
        ...(isEarly ? { inputGradient: Math.min(inputGradient, B) } : {}),
        activation: memory?.forward ?? 0,
        retained: Math.min(memory?.forward ?? 0, memory?.inputHalf ?? 0),
        parameters: run.parameters,
        input: memory?.inputs.reduce((sum, { bytes }) => sum + bytes, 0) ?? run.inputBytes,
      };
      return { costs, memory };
    });
  });
}

/** The stages that take from each stage. */
function takersOf(pipe: Pipe): number[][] {
  const takers = Array.from({ length: pipe.numStages }, (): number[] => []);
  for (const [from, to] of pipe.info().edges) takers[from]?.push(to);
  return takers;
}
