import { expect, test } from 'vitest';
import { runBare } from '../../../testing/run-cli.ts';

test('setup says in one message what stops it', () => {
  const { code, err } = runBare('setup');
  expect(code).toBe(1);
  expect(err).toMatch(/^pipewright: .*Python 3 is needed to fetch libtorch.*bring it with: .*python3-pip$/m);
});
