/** @file Which line of the user's code is running: the first frame of the stack that is not ours. */
import { torchSourceRoot } from '@pipewright/torch/internal';

const pipewrightSourceRoot = new URL('..', import.meta.url).href;

/** `model.ts:12:7`-like text of the place that called into the library, or nothing where it cannot be told. */
function userSourceLine(): string {
  const before = Error.stackTraceLimit;
  Error.stackTraceLimit = 60;
  const { stack = '' } = new Error('where');
  Error.stackTraceLimit = before;
  const frame = stack.split('\n').slice(1).find(isUsers);
  return frame === undefined ? '' : placeOf(frame);
}

function isUsers(frame: string): boolean {
  if (/\.test\.[cm]?[jt]s/.test(frame)) return true;
  const place = placeOf(frame);
  if (place === '' || place.startsWith('node:')) return false;
  return !isInside(place, torchSourceRoot) && !isInside(place, pipewrightSourceRoot);
}

function isInside(place: string, root: string): boolean {
  return place.startsWith(root) || place.startsWith(decodeURI(root).replace(/^file:\/\//, ''));
}

function placeOf(frame: string): string {
  return /\(?((?:file:\/\/|node:|\/|[A-Za-z]:\\)[^()]*:\d+:\d+)\)?$/.exec(frame.trim())?.[1] ?? '';
}

/** The user's line as it stands in a message: ` (at model.ts:12:7)`, or nothing. */
export function here(): string {
  const line = userSourceLine();
  return line === '' ? '' : ` (at ${line})`;
}
