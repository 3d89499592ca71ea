/** @file Every schedule there is, found by name. A new generator is one file in schedules/ and one line here. */

import { nearest, ScheduleError, show } from '../model/errors.ts';
import type { ScheduleDefinition, ScheduleName } from './schedules/definition.ts';
import { dualPipeV } from './schedules/dualpipe-v.ts';
import { forwardOnly } from './schedules/forward-only.ts';
import { gpipe } from './schedules/gpipe.ts';
import { interleaved1F1B } from './schedules/interleaved-1f1b.ts';
import { interleavedZeroBubble } from './schedules/interleaved-zero-bubble.ts';
import { loopedBfs } from './schedules/looped-bfs.ts';
import { oneFOneB } from './schedules/one-f-one-b.ts';
import { adaptiveV } from './schedules/v/adaptive-v.ts';
import { vHalf } from './schedules/v/v-half.ts';
import { vMin } from './schedules/v/v-min.ts';
import { zb1p } from './schedules/zero-bubble/zb1p.ts';
import { zb2p } from './schedules/zero-bubble/zb2p.ts';
import { zbh1 } from './schedules/zero-bubble/zbh1.ts';
import { zbh2 } from './schedules/zero-bubble/zbh2.ts';
import { zbv } from './schedules/zero-bubble/zbv.ts';

/** All definitions, in the order in which help and gallery show them. */
export const scheduleDefinitions: readonly ScheduleDefinition[] = Object.freeze([
  forwardOnly,
  gpipe,
  oneFOneB,
  loopedBfs,
  interleaved1F1B,
  interleavedZeroBubble,
  zbv,
  dualPipeV,
  zbh1,
  zbh2,
  zb1p,
  zb2p,
  vHalf,
  vMin,
  adaptiveV,
]);

/** The names `buildSchedule` takes. */
export const scheduleNames: readonly ScheduleName[] = Object.freeze(
  scheduleDefinitions.map((definition) => definition.name),
);

const byName: ReadonlyMap<string, ScheduleDefinition> = new Map(
  scheduleDefinitions.flatMap((definition) =>
    [definition.name, ...definition.aliases].map((name) => [fold(name), definition] as const),
  ),
);

/**
 * The definition of a schedule by its name, in any case, or by PyTorch's class name.
 * @example findSchedule('schedule1f1b').name // '1F1B'
 */
export function findSchedule(name: string): ScheduleDefinition {
  const found = typeof name === 'string' ? byName.get(fold(name)) : undefined;
  if (found !== undefined) return found;
  const near = typeof name === 'string' ? nearest(fold(name), byName.keys()) : undefined;
  const hint =
    near === undefined
      ? `known schedules: ${scheduleNames.join(', ')}`
      : `did you mean '${byName.get(near)!.name}'? Known schedules: ${scheduleNames.join(', ')}`;
  throw new ScheduleError('UNKNOWN_SCHEDULE', `buildSchedule: there is no schedule ${show(name)}; ${hint}`, {
    name,
    known: scheduleNames,
  });
}

/** Case, spaces, `-` and `_` do not count. */
function fold(name: string): string {
  return name.toLowerCase().replace(/[\s_-]/g, '');
}
