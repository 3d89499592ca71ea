/** @file Joins the two halves of a backward where they are neighbours. */

import { Code, samePair, withCode, wordCode } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';

/**
 * The schedule without bubbles, every `I` directly followed by its `W` turned into one `B`.
 * @example mergeBackward(Schedule.from({ order: [['0F0', '0I0', null, '0W0']] })).toString() // '0F0 0B0'
 */
export function mergeBackward(input: Schedule | ScheduleData): Schedule {
  const schedule = Schedule.from(input);
  return schedule.with({ rows: schedule.denseRows.map(mergeRow) });
}

function mergeRow(row: Int32Array): Int32Array {
  const merged = new Int32Array(row.length);
  let length = 0;
  for (let slot = 0; slot < row.length; slot++) {
    const word = row[slot]!;
    if (word === 0) continue;
    const code = wordCode(word);
    const last = length > 0 ? merged[length - 1]! : 0;
    if (code === Code.W && wordCode(last) === Code.I && samePair(last, word))
      merged[length - 1] = withCode(word, Code.B);
    else merged[length++] = word;
  }
  return merged.slice(0, length);
}
