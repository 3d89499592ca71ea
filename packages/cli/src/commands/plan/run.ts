/** @file `pipewright plan`: measures a model, searches for the best pipeline, and writes it. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { PipelinePlan, ScheduleName, ShardingLevel } from '@pipewright/schedule';
import type { GraphProgram, PlanOptions, PlanResult } from 'pipewright';
import { checkOutput, writeResult } from '../../shared/output.ts';
import { colors } from '../../shared/term.ts';
import { UsageError } from '../../shared/usage-error.ts';
import { cacheName, readCache, writeCache } from './cache.ts';
import { machineOf } from './machine.ts';
import type { Measured, MeasureTask } from './measure-rank.ts';
import { type ModelSource, openModel } from './model.ts';
import { writePlan } from './plan-file.ts';

/** The flags of the command. */
export interface PlanFlags {
  readonly ranks: number;
  readonly batch: number;
  readonly rows?: readonly number[];
  readonly memory?: number | readonly number[];
  readonly machine?: string;
  readonly schedules?: readonly string[];
  readonly dp?: readonly number[] | 'all';
  readonly shards?: readonly string[];
  readonly recompute: boolean;
  readonly stateFactor?: number;
  readonly cores?: number;
  readonly rounds?: number;
  readonly inputs?: string;
  readonly fast?: boolean;
  readonly cache: boolean;
  readonly top?: number;
  readonly picture?: string;
  readonly out?: string;
  readonly model?: string;
  readonly size?: Readonly<Record<string, number>>;
  readonly color?: boolean;
}

/**
 * Plans whose stages are measured themselves, out of how many: out of so many that every size of microbatches is among them, also one whose
 * units were measured in a slow moment. Fewer of many ranks, which take turns on the cores.
 */
const settled = { usual: 16, outOf: 200, many: 3, manyRanks: 8 };
/** Sizes of microbatches that are measured, at most, where none are named. */
const mostSizes = 4;

/** Share by which the step of a plan that was run differs from its simulation. */
const leastTried = 1e-6;

/** Percent below which steps are called equal: 0.0 is what would be printed. */
const leastShown = 0.05;

/** Runs the command; returns the exit code. */
export async function plan(file: string, flags: PlanFlags): Promise<number> {
  await checkOutput(flags.picture);
  const out = flags.out ?? 'plan.json';
  await checkOutput(out);
  const source: ModelSource = { file, model: flags.model, sizes: flags.size ?? {}, inputs: flags.inputs };
  const { planPipeline, sensitivities, formatPlans } = await import('pipewright');
  const { findSchedule, planSimulation, quantity, renderSvg, renderTimeline } = await import('@pipewright/schedule');
  const schedules = flags.schedules?.map((name) => findSchedule(name).name as ScheduleName);
  const given = await machineOf(flags);
  const [replicas, levels] = [degreesOf(flags), levelsOf(flags)];
  const model = await openModel(source);
  const rows = rowsOf(flags, model.fixedRows);
  const meter = new Meter(source, flags, model.program(rows[0]!));
  const { tables, link } = await meter.units(rows);
  const machine: PlanOptions['machine'] = { ...(link ?? {}), ...given, ranks: flags.ranks };
  const options: PlanOptions = {
    machine,
    tables,
    batch: flags.batch,
    schedules,
    replicas,
    levels,
    stateFactor: flags.stateFactor,
    mayRecompute: flags.recompute,
    most: Math.max(
      flags.top ?? 5,
      flags.fast === true || flags.ranks > settled.manyRanks ? settled.many : settled.outOf,
    ),
  };
  const isOpen = flags.dp === undefined && flags.ranks > 1;
  const result = isOpen ? onePipeline(planPipeline, options) : planPipeline(options);
  const plans = flags.fast === true ? result.plans : await settleBest(result, meter);
  const [best] = plans as [PipelinePlan];
  const shown = { ...result, plans: plans.slice(0, flags.top ?? 5) };
  const paint = colors(flags.color);
  const units = tables[0]?.units.length ?? 0;
  const simulation = planSimulation(best);
  const tried = plans.some((each) => Math.abs(each.predicted.step / planSimulation(each).makespan - 1) > leastTried);
  const examined =
    flags.fast === true ? '' : tried ? `, ${plans.length} of them run` : `, the stages of ${plans.length} measured`;
  const text = [
    `${paint.bold(file)}: ${units} units on ${flags.ranks} ranks, batches of ${flags.batch} rows; ${result.simulated} pipelines simulated${examined}`,
    '',
    formatPlans(shown, sensitivities(options, best)),
    ...singleOf(best, model.fixedRows),
    '',
    ...best.units.map(
      (names, stage) =>
        `  stage ${stage} on rank ${best.stageToRank[stage]}: ${namesOf(names)}${best.recompute[stage] === true ? ', computed again' : ''}`,
    ),
    '',
    ...(tried
      ? [
          'Steps are as long as in those runs. The timeline is simulated from the times of actions alone, without what a run adds to each:',
          `${quantity(1000 * simulation.makespan)} ms of ${quantity(1000 * best.predicted.step)} ms.`,
          '',
        ]
      : []),
    'Timeline in milliseconds, memory in bytes',
    renderTimeline(planSimulation(inMilliseconds(best)), { color: flags.color === true }),
    ...(isOpen ? besideOf(severalPipelines(planPipeline, options), result) : []),
  ].join('\n');
  const print = out === '-' ? process.stderr : process.stdout; // a plan on standard output stands there alone
  print.write(`${text}\n`);
  const { isReplaced, kept } = await writePlan(best, out);
  if (flags.picture !== undefined) await writeResult(renderSvg(simulation), flags.picture);
  if (out !== '-')
    process.stdout.write(
      `The best plan is in ${out}${isReplaced ? ', in place of what was there' : ''}; pipewright run --plan ${out} runs it.\n`,
    );
  if (kept !== null)
    process.stdout.write(
      `What ${out} held was changed since it was planned or is of another model; it is in ${kept} now.\n`,
    );
  return 0;
}

/** A line where a model that was exported for a number of rows leaves one microbatch: ranks then take turns. */
function singleOf({ ranks, microbatches }: PipelinePlan, fixedRows: number | null): string[] {
  if (fixedRows === null || microbatches > 1 || ranks === 1) return [];
  return [
    '',
    `  The model takes exactly ${fixedRows} rows, so the batch is one microbatch and the ranks take turns: export it with a dynamic batch size, or raise --batch`,
  ];
}

/** A plan whose times are milliseconds instead of seconds: for pictures. */
function inMilliseconds(plan: PipelinePlan): PipelinePlan {
  const ms = <T extends object>(from: T, names: readonly (keyof T)[], factor = 1000): Partial<T> =>
    Object.fromEntries(
      names.flatMap((name) => (typeof from[name] === 'number' ? [[name, from[name] * factor]] : [])),
    ) as Partial<T>;
  const slower = <T extends { readonly latency?: number | undefined; readonly bandwidth?: number | undefined }>(
    link: T,
  ): T => ({ ...link, ...ms(link, ['latency']), ...ms(link, ['bandwidth'], 1 / 1000) });
  const { links } = plan.machine;
  return {
    ...plan,
    costs: plan.costs.map((stage) => ({ ...stage, ...ms(stage, ['F', 'I', 'W', 'B', 'inputGradient']) })),
    machine: { ...slower(plan.machine), ...(links === undefined ? {} : { links: links.map(slower) }) },
  };
}

/** The best plans with the costs of their own stages, in the order that these give. */
async function settleBest(result: PlanResult, meter: Meter): Promise<PipelinePlan[]> {
  const { rankPlans, worthTrying } = await import('pipewright');
  const [{ ranks }] = result.plans as [PipelinePlan];
  const best =
    ranks > settled.manyRanks ? result.plans.slice(0, settled.many) : worthTrying(result.plans, settled.usual);
  const found = rankPlans(await meter.plans(best));
  const [first] = found as [PipelinePlan];
  return found.map((one, i) => {
    const longer = 100 * (one.predicted.step / first.predicted.step - 1);
    const idle = `idle for ${(100 * one.predicted.bubble).toFixed(1)}% of the step`;
    const second = found[1];
    const lead = second === undefined ? 0 : 100 * (second.predicted.step / first.predicted.step - 1);
    const place =
      i > 0
        ? longer < leastShown
          ? 'equal to the best'
          : `${longer.toFixed(1)}% longer than the best`
        : second === undefined
          ? 'the only one that fits'
          : `${lead < leastShown ? 'equal to' : `${lead.toFixed(1)}% ahead of`} ${second.schedule}`;
    const again = one.recompute.filter(Boolean).length;
    return {
      ...one,
      why: `${place}, ${idle}${again === 0 ? '' : `; ${again} of its stages compute their forward again to fit`}`,
    };
  });
}

function namesOf(names: readonly string[]): string {
  return names.length <= 3 ? names.join(', ') : `${names[0]} to ${names.at(-1)} (${names.length} units)`;
}

/** How many pipelines stand beside each other: one where nothing is said, because every program can run that. */
function degreesOf({ dp = [1], ranks }: PlanFlags): PlanOptions['replicas'] {
  if (dp === 'all') return dp;
  const wrong = dp.find((each) => ranks % each !== 0);
  if (wrong !== undefined) throw new UsageError(`--dp ${wrong}: ${ranks} ranks are not divisible by ${wrong}`);
  return dp;
}

type Plan = (options: PlanOptions) => PlanResult;

/** The plans of one pipeline; where none fits, the error says which number of pipelines does. */
function onePipeline(planPipeline: Plan, options: PlanOptions): PlanResult {
  try {
    return planPipeline(options);
  } catch (error) {
    const replicas = severalPipelines(planPipeline, options)?.dataParallel?.replicas;
    if (replicas !== undefined)
      (error as Error).message += `; ${replicas} data-parallel pipelines would fit: --dp ${replicas}`;
    throw error;
  }
}

/** The best plan of several pipelines beside each other; null where there is none. */
function severalPipelines(planPipeline: Plan, options: PlanOptions): PipelinePlan | null {
  const { ranks } = options.machine;
  const replicas = Array.from({ length: ranks - 1 }, (_, i) => i + 2).filter((each) => ranks % each === 0);
  try {
    return planPipeline({ ...options, replicas, most: 1 }).plans[0] ?? null;
  } catch {
    return null;
  }
}

/** A line on several pipelines where they look better than one; both as the units predict them. */
function besideOf(several: PipelinePlan | null, { plans: [one] }: PlanResult): string[] {
  const { replicas = 1, level } = several?.dataParallel ?? {};
  if (several === null || one === undefined) return [];
  const share = 1 - several.predicted.step / one.predicted.step;
  if (share <= 0) return [];
  const what = level === 'replicate' ? `${replicas} replicas` : `${replicas} shards of ${level}`;
  return [
    '',
    `${what} of ${several.ranks === 1 ? 'one stage' : `a pipeline of ${several.ranks} ranks`} (${several.schedule}) look ${(100 * share).toFixed(1)}% shorter, from units alone: --dp ${replicas} plans that, for programs that build their stages with planStages`,
  ];
}

function levelsOf({ shards, dp = [1] }: PlanFlags): ShardingLevel[] | undefined {
  const known: readonly string[] = ['replicate', 'optimizer', 'gradients', 'parameters'];
  const wrong = shards?.find((level) => !known.includes(level));
  if (wrong !== undefined) throw new UsageError(`--shards ${wrong} is not one of ${known.join(', ')}`);
  if (shards !== undefined && dp !== 'all' && dp.every((replicas) => replicas === 1))
    throw new UsageError('--shards is for several pipelines: add --dp 2, or --dp all');
  return shards as ShardingLevel[] | undefined;
}

/** Sizes of microbatches: those named, or powers of two that leave at least as many microbatches as ranks. */
function rowsOf({ rows, batch, ranks }: PlanFlags, fixed: number | null): number[] {
  const fits = (each: number): boolean => batch % each === 0;
  if (fixed !== null) {
    if (!fits(fixed))
      throw new UsageError(
        `the model takes ${fixed} rows at a time; --batch: ${batch} rows are not divisible by ${fixed}`,
      );
    return [fixed];
  }
  const wrong = rows?.find((each) => !fits(each));
  if (wrong !== undefined) throw new UsageError(`--rows ${wrong}: ${batch} rows are not divisible by ${wrong}`);
  if (rows !== undefined) return [...rows];
  const powers = Array.from({ length: 20 }, (_, i) => 2 ** i).filter((each) => fits(each) && batch / each >= ranks);
  return powers.length === 0 ? [1] : powers.slice(-mostSizes);
}

/** Measures, as many ranks at a time as the machine has cores for. */
class Meter {
  private readonly source: ModelSource;
  private readonly flags: PlanFlags;
  private readonly program: GraphProgram;
  private readonly ranks: number;
  private readonly cores: number;

  constructor(source: ModelSource, flags: PlanFlags, program: GraphProgram) {
    this.source = source;
    this.flags = flags;
    this.program = program;
    const all = availableParallelism();
    this.cores = flags.cores ?? Math.max(1, Math.floor(all / flags.ranks));
    this.ranks = Math.max(1, Math.min(flags.ranks, Math.floor(all / this.cores)));
  }

  async units(rows: readonly number[]): Promise<Measured> {
    return this.measure({ rows, plans: [] });
  }

  /** The plans as their own stages predict them. */
  async plans(plans: readonly PipelinePlan[]): Promise<Measured['plans']> {
    return (await this.measure({ rows: [], plans })).plans;
  }

  private async measure(what: Pick<MeasureTask, 'rows' | 'plans'>): Promise<Measured> {
    const { sizes } = this.source;
    const rounds = this.flags.rounds ?? 7;
    const mayTry = this.flags.machine === undefined;
    const key = { sizes, ranks: this.ranks, cores: this.cores, rounds, mayTry, what };
    const name = cacheName(this.program, key);
    const known = this.flags.cache ? readCache(name) : null;
    if (known !== null) return known as Measured;
    const folder = mkdtempSync(join(tmpdir(), 'pipewright-plan-'));
    const out = join(folder, 'measured.json');
    try {
      const { launch } = await import('pipewright/launch');
      const task: MeasureTask = { source: this.source, rounds, out, mayTry, ...what };
      const script = new URL(
        import.meta.url.endsWith('.ts') ? './measure-rank.ts' : './measure-rank.js',
        import.meta.url,
      );
      await launch({ ranks: this.ranks, mode: 'threads', threadsPerRank: this.cores, script, data: task }).done;
      const measured = JSON.parse(readFileSync(out, 'utf8')) as Measured;
      if (this.flags.cache) writeCache(name, measured);
      return measured;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
}
