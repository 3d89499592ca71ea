import { expect, test } from 'vitest';
import { cli } from '../../testing/run-cli.ts';
import { inFlagWords } from './flag-words.ts';

test('names of functions go, options become flags', () => {
  expect(inFlagWords('buildSchedule: PyTorch has no ZBH1; leave compat out')).toBe(
    'PyTorch has no ZBH1; leave compat out',
  );
  expect(inFlagWords('a.csv: parseCsv: the text is empty')).toBe('a.csv: the text is empty');
  expect(inFlagWords('Schedule.from: no order')).toBe('no order');
  expect(inFlagWords('memoryLimit is 3 (in the unit of costs.activation); leave stagesPerRank out')).toBe(
    '--memory-limit is 3 (in the unit of --activation); leave --stages-per-rank out',
  );
  expect(inFlagWords('1F1B: it has 1 stage; memoryLimits')).toBe('1F1B: it has 1 stage; memoryLimits');
});

test('on the command line', () => {
  expect(cli('schedule 1F1B -p 4 -m 8 -s 3').err).toContain('leave --stages-per-rank out');
  expect(cli('schedule ZB1P -p 4 -m 8 --memory-limit 0.5').err).toContain(
    '--memory-limit is 0.5 (in the unit of --activation, 1 per stage and microbatch by default); raise --memory-limit to',
  );
  expect(cli('simulate -', '').err).toMatch(/^pipewright: standard input: the text is empty;/);
});
