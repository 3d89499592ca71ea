/** @file What a run of 1F1B on 2 ranks tells, for tests: three steps, each longer than the one before. */
import { buildSchedule, type LiveLine, simulate } from '@pipewright/schedule';

/** The lines with their ranks. */
export function runLines(): { readonly rank: number; readonly line: LiveLine }[] {
  const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 3 });
  const lines: { rank: number; line: LiveLine }[] = [];
  for (const rank of [0, 1]) {
    const head = { device: 'cpu', process: `host:${rank}`, origin: 0, tokensPerStep: null };
    const json = rank === 0 ? schedule.toJSON() : null;
    lines.push({ rank, line: { kind: 'run', version: 1, rank, ...head, schedule: json } });
  }
  [10, 20, 30].forEach((F, step) => {
    const simulation = simulate(schedule, { F, B: 2 * F });
    for (const rank of [0, 1]) {
      const times = (schedule.order[rank] ?? []).flatMap((_, slot) => simulation.at(rank, slot) ?? []);
      const start = times.map((one) => step * 1000 + one.start);
      const none = start.map(() => 0);
      lines.push({
        rank,
        line: {
          ...{ kind: 'step', step, training: true, begin: step * 1000, end: step * 1000 + simulation.makespan },
          ...{ loss: null, processBytes: 1, deviceBytes: null, heldBytes: null },
          actions: {
            ...{ start, ready: start.map(() => -1), stop: times.map((one) => step * 1000 + one.end) },
            ...{ bytes: none, tensors: none },
          },
        },
      });
    }
  });
  return lines;
}
