/**
 * @file PIPEWRIGHT_DEBUG: what every rank does, on standard error. 1: steps and their times, 2: every action as well. Lines
 * are written at once, also by threads that never let their event loop turn.
 */
import { writeSync } from 'node:fs';
import { formatAction } from '@pipewright/schedule';
import { PipelineError } from '../base/errors.ts';
import type { ActionHook } from './options.ts';

/** What prints, or null where nothing is asked for. */
export function debugHook(rank: number, text: string | undefined = process.env['PIPEWRIGHT_DEBUG']): ActionHook | null {
  const level = debugLevel(text);
  if (level === 0) return null;
  const say = (message: string): void => void writeSync(2, `[rank ${rank}] ${message}\n`);
  const begins: number[] = [];
  const time = (): string => `${(performance.now() - (begins.pop() ?? 0)).toFixed(3)} ms`;
  let at = '';
  const steps: ActionHook = {
    beforeStep: (kind, step) => {
      at = `${kind} ${step}`;
      begins.length = 0;
      begins.push(performance.now());
      say(`${at} begins`);
    },
    afterStep: () => say(`${at} took ${time()}`),
  };
  if (level === 1) return steps;
  return {
    ...steps,
    before: () => void begins.push(performance.now()),
    after: (action, slot) => say(`${at} slot ${slot} ${formatAction(action)} ${time()}`),
  };
}

function debugLevel(text: string | undefined): 0 | 1 | 2 {
  if (text === undefined || text === '' || text === '0') return 0;
  if (text === '1' || text === '2') return text === '1' ? 1 : 2;
  throw new PipelineError('BAD_OPTION', `PIPEWRIGHT_DEBUG is '${text}'; give 1 (steps) or 2 (every action)`);
}
