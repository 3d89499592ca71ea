/** @file `pipewright compare`: several schedules on the same work, side by side, the best of each column marked. */
import type { Costs, PerStage, Schedule, ScheduleDefinition, Simulation } from '@pipewright/schedule';
import { readCosts } from '../../shared/costs.ts';
import { inFlagWords } from '../../shared/flag-words.ts';
import type { CostFlags } from '../../shared/flags.ts';
import { writeResult } from '../../shared/output.ts';
import type { OutputFlags } from '../../shared/render.ts';
import { checkHasShape, isFile, loadSchedule, type SourceFlags } from '../../shared/source.ts';
import { type Colors, colors, formatTable, lineWidth, type TableCell, wrapWords } from '../../shared/term.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags of the command. */
export interface CompareFlags extends SourceFlags, CostFlags, OutputFlags {
  readonly allRanks?: boolean;
}

/** One schedule of the comparison. */
interface Entry {
  readonly name: string;
  readonly stagesPerRank: number;
  readonly step: Simulation;
  readonly peaks: readonly number[];
  /** Where the memory limit is exceeded most; null where all ranks keep to it or there is none. */
  readonly excess: Excess | null;
}

interface Excess {
  readonly rank: number;
  readonly amount: number;
}

const mostRanksShown = 16;

/** Runs the command; returns the exit code. */
export async function compare(names: readonly string[], flags: CompareFlags): Promise<number> {
  if (names.length === 0) checkHasShape(flags);
  const wanted = names.length > 0 ? names : await namesForShape(flags);
  const files = await readFiles(wanted, flags);
  const first = files.values().next().value;
  const shaped = first === undefined ? flags : { ranks: first.ranks, microbatches: first.microbatches, ...flags };
  const entries: Entry[] = [];
  const left: string[] = [];
  for (const name of wanted) {
    try {
      entries.push(await play(name, shaped, files));
    } catch (error) {
      // With no names given, a schedule that cannot do this shape is left out; a named one is an error.
      if (names.length > 0 || (error as { code?: string }).code !== 'BAD_SHAPE') throw error;
      left.push((error as Error).message);
    }
  }
  if (entries.length === 0)
    throw new UsageError(`no schedule can do this shape:\n${left.map((line) => `  ${line}`).join('\n')}`);
  const json = flags.format === 'json';
  await writeResult(json ? `${JSON.stringify(toJson(entries), null, 2)}\n` : await describe(entries, flags), flags.out);
  if (!json) for (const line of left) console.error(`left out: ${inFlagWords(line)}`);
  return 0;
}

async function namesForShape(flags: CompareFlags): Promise<readonly string[]> {
  const { scheduleDefinitions } = await import('@pipewright/schedule');
  return scheduleDefinitions
    .filter(({ hasBackward, inTorch }) => hasBackward && (flags.compat === undefined || inTorch))
    .filter(
      ({ stagesPerRank }) =>
        flags.stagesPerRank === undefined ||
        (flags.stagesPerRank >= stagesPerRank.least && flags.stagesPerRank <= stagesPerRank.most),
    )
    .map(({ name }) => name);
}

/** The schedules of the files among the names; each is read once, since one may be standard input. */
async function readFiles(names: readonly string[], flags: CompareFlags): Promise<Map<string, Schedule>> {
  // `--stages-per-rank` is for schedules that are built.
  const { stagesPerRank: _, ...shape } = flags;
  const files = new Map<string, Schedule>();
  for (const name of names) if (isFile(name) && !files.has(name)) files.set(name, await loadSchedule(name, shape));
  return files;
}

/** Builds and simulates `NAME` or `NAME:STAGES_PER_RANK`, with the rank's costs dealt to its stages. */
async function play(spec: string, flags: CompareFlags, files: ReadonlyMap<string, Schedule>): Promise<Entry> {
  const { findSchedule } = await import('@pipewright/schedule');
  const costs = readCosts(flags) ?? {};
  const schedule = files.get(spec);
  if (schedule !== undefined) {
    const stagesPerRank = schedule.stagesPerRank || 1; // an empty file has none
    return entry({ name: spec, stagesPerRank, schedule, costs: dealt(costs, stagesPerRank) }, flags);
  }
  const [name, chunks] = spec.split(':') as [string, string | undefined];
  if (chunks !== undefined && !/^[1-9]\d*$/.test(chunks))
    throw new UsageError(`${spec}: after the colon stands the number of stages per rank, as in Interleaved1F1B:4`);
  const { stagesPerRank: allowed } = findSchedule(name);
  const chosen = chunks === undefined ? (flags.stagesPerRank ?? allowed.default) : Number(chunks);
  // `--stages-per-rank` is for the schedules that have a choice.
  const stagesPerRank = chunks === undefined && allowed.least === allowed.most ? allowed.default : chosen;
  const definition = findSchedule(name);
  const perStage = dealt(costs, stagesPerRank);
  return entry(
    {
      name: chunks === undefined ? definition.name : `${definition.name}:${chunks}`,
      stagesPerRank,
      schedule: await build(definition, { ...flags, stagesPerRank }, perStage),
      costs: perStage,
    },
    flags,
  );
}

/** A schedule that keeps to the memory limit, where it can; else the one without a limit. */
async function build(
  { name, usesMemoryLimit }: Pick<ScheduleDefinition, 'name' | 'usesMemoryLimit'>,
  flags: SourceFlags,
  costs: Costs,
): Promise<Schedule> {
  const { memoryLimit, ...unlimited } = flags;
  if (memoryLimit === undefined || !usesMemoryLimit) return loadSchedule(name, unlimited, costs);
  return loadSchedule(name, flags, costs).catch((error: unknown) => {
    if ((error as { code?: string }).code !== 'MEMORY_LIMIT') throw error;
    return loadSchedule(name, unlimited, costs);
  });
}

async function entry(
  what: { readonly name: string; readonly stagesPerRank: number; readonly schedule: Schedule; readonly costs: Costs },
  { memoryLimit }: CompareFlags,
): Promise<Entry> {
  const { simulate } = await import('@pipewright/schedule');
  const { name, stagesPerRank, schedule, costs } = what;
  const step = simulate(schedule, costs);
  // The limit is for activations alone.
  const excess =
    memoryLimit === undefined
      ? null
      : excessOf(simulate(schedule, { ...costs, parameters: 0, weightGradient: 0 }).peakMemory, memoryLimit);
  return { name, stagesPerRank, step, peaks: Array.from(step.peakMemory), excess };
}

/** The rank that is furthest above its limit. */
function excessOf(peaks: Iterable<number>, limit: number | readonly number[]): Excess | null {
  const held = [...peaks];
  if (typeof limit !== 'number' && limit.length !== held.length)
    throw new UsageError(
      `--memory-limit has ${limit.length} values for ${held.length} ranks; give one number, or one per rank`,
    );
  let worst: Excess | null = null;
  held.forEach((peak, rank) => {
    const amount = peak - (typeof limit === 'number' ? limit : limit[rank]!);
    if (amount > 1e-9 * (1 + peak) && amount > (worst?.amount ?? 0)) worst = { rank, amount };
  });
  return worst;
}

/** The entries among which the best are looked for: those that fit, where any does. */
function candidates(entries: readonly Entry[]): readonly Entry[] {
  const fitting = entries.filter(({ excess }) => excess === null);
  return fitting.length === 0 ? entries : fitting;
}

/** Times and memory of a rank's share of the model, split evenly over its stages, so that every schedule does the same work. */
function dealt(costs: Costs, stagesPerRank: number): Costs {
  const split = (value: PerStage | undefined, otherwise?: number): PerStage | undefined => {
    const given = value ?? otherwise;
    if (given === undefined) return undefined;
    if (typeof given === 'number') return given / stagesPerRank;
    throw new UsageError(
      `compare takes one number per cost, since schedules cut the model differently; got ${given.join(',')}`,
    );
  };
  const halves = costs.B === undefined ? 1 : undefined;
  const result: Record<string, unknown> = {
    ...costs,
    F: split(costs.F, 1),
    I: split(costs.I, halves),
    W: split(costs.W, halves),
    B: split(costs.B),
    activation: split(costs.activation, 1),
    weightGradient: split(costs.weightGradient),
    parameters: split(costs.parameters),
  };
  return Object.fromEntries(Object.entries(result).filter(([, value]) => value !== undefined)) as Costs;
}

interface Column {
  readonly head: string;
  readonly value: (entry: Entry) => number;
  readonly text: (value: number) => string;
}

async function describe(entries: readonly Entry[], flags: CompareFlags): Promise<string> {
  const { percent, plural, quantity } = await import('@pipewright/schedule');
  const paint = colors(flags.out === undefined ? flags.color : false);
  const columns: Column[] = [
    { head: 'makespan', value: ({ step }) => step.makespan, text: quantity },
    { head: 'bubble', value: ({ step }) => step.bubble.makespan, text: percent },
    { head: 'of span', value: ({ step }) => step.bubble.span, text: percent },
    { head: 'peak memory', value: ({ peaks }) => Math.max(0, ...peaks), text: quantity },
  ];
  const dim = (text: string): TableCell => ({ text, paint: paint.dim });
  const able = candidates(entries);
  const best = columns.map(({ value }) => Math.min(...able.map(value)));
  const isLimited = entries.some(({ excess }) => excess !== null);
  const note = ({ excess }: Entry): TableCell =>
    excess === null
      ? { text: '' }
      : { text: `does not fit: ${quantity(excess.amount)} too much on rank ${excess.rank}`, paint: paint.yellow };
  const rows = entries.map((item) => [
    item.name,
    quantity(item.stagesPerRank),
    ...columns.map(({ value, text }, i) =>
      marked(text(value(item)), able.includes(item) && value(item) <= best[i]! + 1e-9 * Math.abs(best[i]!), paint),
    ),
    ...(isLimited ? [note(item)] : []),
  ]);
  const { schedule } = entries[0]!.step;
  const title = `${plural(schedule.ranks, 'rank')}, ${plural(schedule.microbatches, 'microbatch', 'microbatches')}; * marks the best of a column`;
  const legend =
    'bubble: the share of the makespan in which ranks are idle; of span: the same, without the time before the first and after the last action of a rank';
  const heads = ['schedule', 'stages/rank', ...columns.map(({ head }) => `${head} `), ...(isLimited ? [''] : [])];
  const summary = formatTable([heads.map(dim), ...rows], { align: isLimited ? 'lrrrrrl' : 'lrrrrr' });
  const width = lineWidth(flags.width);
  const explained = wrapWords(legend, width).map((line) => `${paint.dim(line)}\n`);
  const ranks = perRank(entries, { dim, quantity, percent, all: flags.allRanks === true, width });
  return `${paint.bold(title)}\n${summary}${explained.join('')}\n${ranks}`;
}

/** Best values end in a star, the others in a space, so that digits stay aligned. */
function marked(text: string, isBest: boolean, paint: Colors): TableCell {
  return isBest ? { text: `${text}*`, paint: paint.green } : { text: `${text} ` };
}

/** Busy share and peak memory of every rank; of many ranks, the first and the last ones unless all are asked for. */
function perRank(
  entries: readonly Entry[],
  use: {
    readonly dim: (text: string) => TableCell;
    readonly quantity: (value: number) => string;
    readonly percent: (share: number) => string;
    readonly all: boolean;
    readonly width: number;
  },
): string {
  const ranks = Math.max(...entries.map(({ peaks }) => peaks.length));
  const cut = !use.all && ranks > mostRanksShown;
  const shown = Array.from({ length: ranks }, (_, rank) => rank).filter(
    (rank) => !cut || rank < 4 || rank >= ranks - 4,
  );
  const column = ({ name, step, peaks }: Entry): string[] => {
    const cells = shown.map((rank) =>
      peaks[rank] === undefined
        ? ''
        : `${use.percent(step.makespan > 0 ? step.busy[rank]! / step.makespan : 0)} ${use.quantity(peaks[rank])}`,
    );
    if (cut) cells.splice(4, 0, '…');
    return [name, ...cells];
  };
  const labels = ['rank', ...shown.map(String)];
  if (cut) labels.splice(5, 0, '…');
  const blocks = fitColumns(entries.map(column), use.width - Math.max(...labels.map((label) => label.length)));
  const tables = blocks.map((block) =>
    formatTable(
      labels.map((label, row) => {
        const line = [label, ...block.map((cells) => cells[row]!)];
        return row === 0 ? line.map(use.dim) : line;
      }),
    ),
  );
  const note = cut ? `(${ranks - 8} ranks not shown; --all-ranks shows them)\n` : '';
  return `busy share and peak memory per rank\n${tables.join('\n')}${note}`;
}

/** Columns in groups that fit side by side into `width`; every group has at least one. */
function fitColumns(columns: readonly (readonly string[])[], width: number): (readonly string[])[][] {
  const groups: (readonly string[])[][] = [];
  let used = Number.POSITIVE_INFINITY;
  for (const column of columns) {
    const needed = 2 + Math.max(...column.map((cell) => cell.length));
    if (used + needed > width) {
      groups.push([]);
      used = 0;
    }
    groups.at(-1)!.push(column);
    used += needed;
  }
  return groups;
}

function toJson(entries: readonly Entry[]): object {
  const best = (value: (item: Entry) => number): string[] => {
    const able = candidates(entries);
    const least = Math.min(...able.map(value));
    return able.filter((item) => value(item) <= least + 1e-9 * Math.abs(least)).map(({ name }) => name);
  };
  return {
    schedules: entries.map(({ name, stagesPerRank, step, peaks, excess }) => ({
      name,
      ranks: step.schedule.ranks,
      stagesPerRank,
      microbatches: step.schedule.microbatches,
      makespan: step.makespan,
      span: step.span,
      bubble: step.bubble,
      peakMemory: Math.max(0, ...peaks),
      ...(excess === null ? {} : { doesNotFit: excess }),
      perRank: peaks.map((peakMemory, rank) => ({
        rank,
        busy: step.busy[rank],
        idle: step.idle[rank],
        communication: step.communication[rank],
        peakMemory,
      })),
    })),
    best: {
      makespan: best(({ step }) => step.makespan),
      bubbleMakespan: best(({ step }) => step.bubble.makespan),
      bubbleSpan: best(({ step }) => step.bubble.span),
      peakMemory: best(({ peaks }) => Math.max(0, ...peaks)),
    },
  };
}
