/** @file The error of a step, whatever was thrown in it. */
import { parseAction } from '@pipewright/schedule';
import { expect, test } from 'vitest';
import { StepError } from './errors.ts';

const place = { slot: 3, action: parseAction('1F0')! };

test('a cause that is its own cause comes to an end', () => {
  const cause = new Error('again and again');
  cause.cause = cause;
  const error = new StepError(1, place, cause);
  expect(error.message).toBe('rank 1, slot 3 (1F0): again and again');
  expect(error.stack).toContain('errors.test.ts');
});

test('a cause that cannot be read is still told with its place', () => {
  const cause = Object.defineProperty(new Error('hidden'), 'message', {
    get() {
      throw new Error('no message');
    },
  });
  expect(new StepError(1, place, cause).message).toBe('rank 1, slot 3 (1F0): an error whose message cannot be read');
});
