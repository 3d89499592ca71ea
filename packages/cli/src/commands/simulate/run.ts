/** @file `pipewright simulate`: simulates a step with costs and prints time, bubble and memory. */
import type { Simulation } from '@pipewright/schedule';
import { readCosts } from '../../shared/costs.ts';
import type { CostFlags } from '../../shared/flags.ts';
import { writeResult } from '../../shared/output.ts';
import { chooseFormat, type OutputFlags, renderStep } from '../../shared/render.ts';
import { loadSchedule, type SourceFlags } from '../../shared/source.ts';
import { colors, formatTable, lineWidth } from '../../shared/term.ts';

/** What `simulate` can write. */
const simulateFormats = ['text', 'json', 'timeline', 'svg', 'trace'] as const;

/** The flags of the command. */
export interface SimulateFlags extends SourceFlags, CostFlags, OutputFlags {
  readonly lower?: boolean;
}

/** Runs the command; returns the exit code. */
export async function simulate(name: string, flags: SimulateFlags): Promise<number> {
  const library = await import('@pipewright/schedule');
  const costs = readCosts(flags);
  let order = await loadSchedule(name, flags, costs);
  if (flags.lower === true) order = library.lower(order);
  const step = library.simulate(order, costs);
  const format = chooseFormat<(typeof simulateFormats)[number]>(flags, 'text');
  if (format === 'json') await writeResult(`${JSON.stringify(step, null, 2)}\n`, flags.out);
  else if (format === 'text') await writeResult(await describe(step, flags), flags.out);
  else await writeResult(await renderStep(format, step, flags), flags.out);
  return 0;
}

/** The numbers of a step in words and a table. */
async function describe(step: Simulation, flags: SimulateFlags): Promise<string> {
  const { percent, plural, quantity, formatAction } = await import('@pipewright/schedule');
  const { schedule } = step;
  const paint = colors(flags.out === undefined ? flags.color : false);
  const peaks = Array.from(step.peakMemory);
  const peak = Math.max(0, ...peaks);
  const path = step.criticalPath;
  const onPath = path.reduce((sum, { start, end }) => sum + end - start, 0);
  const facts = [
    ['makespan', quantity(step.makespan)],
    ['span', quantity(step.span)],
    ['bubble', `${percent(step.bubble.makespan)} of the makespan, ${percent(step.bubble.span)} of the span`],
    ['peak memory', `${quantity(peak)} on rank ${peaks.indexOf(peak)}`],
    [
      'critical path',
      `${plural(path.length, 'action')}: ${shorten(path.map(({ action }) => formatAction(action)))}; ${quantity(onPath)} of work, ${quantity(step.makespan - onPath)} waiting for messages`,
    ],
  ];
  const head = ['rank', 'busy', 'idle', 'communication', 'waiting', 'peak memory'].map((text) => ({
    text,
    paint: paint.dim,
  }));
  const rows = peaks.map((amount, rank) => [
    String(rank),
    `${quantity(step.busy[rank]!)} (${percent(step.makespan > 0 ? step.busy[rank]! / step.makespan : 0)})`,
    quantity(step.idle[rank]!),
    quantity(step.communication[rank]!),
    quantity(step.exposed[rank]!),
    { text: quantity(amount), paint: amount === peak ? paint.yellow : (text: string) => text },
  ]);
  const title = `${schedule.name}: ${plural(schedule.ranks, 'rank')}, ${plural(schedule.stages, 'stage')}, ${plural(schedule.microbatches, 'microbatch', 'microbatches')}`;
  return `${paint.bold(title)}\n${formatTable(facts, { align: 'll', width: lineWidth(flags.width) })}\n${formatTable([head, ...rows])}`;
}

function shorten(actions: readonly string[]): string {
  return actions.length <= 12 ? actions.join(' ') : `${actions.slice(0, 6).join(' ')} … ${actions.slice(-5).join(' ')}`;
}
