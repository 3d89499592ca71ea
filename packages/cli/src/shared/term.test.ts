import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { cli } from '../../testing/run-cli.ts';
import { formatTable, wrapWords } from './term.ts';

const model = fileURLToPath(new URL('../../../../testdata/models/gpt2_dyn.pt2', import.meta.url));

describe('reports keep to the width', () => {
  test.each([
    'compare -p 4 -m 8',
    'compare -p 40 -m 80 1F1B Interleaved1F1B:2 Interleaved1F1B:4 ZBV ZB1P',
    'schedule --list',
    'simulate Interleaved1F1B -p 8 -m 16 --comm 0.1',
    'schedule 1F1B -p 64 -m 512 -f timeline',
    `split ${model} --stages 3`,
  ])('%s', (line) => {
    for (const width of [80, 132]) {
      const { code, out, err } = cli(`${line} --width ${width}`);
      expect({ code, err }).toEqual({ code: 0, err: '' });
      expect(Math.max(...out.split('\n').map((text) => text.length))).toBeLessThanOrEqual(width);
    }
    expect(
      Math.max(
        ...cli(line)
          .out.split('\n')
          .map((text) => text.length),
      ),
    ).toBeLessThanOrEqual(100);
  });
});

test('a table breaks one column between words', () => {
  const rows = [
    ['name', 'text', 'n'],
    ['one', 'a text of several words', '1'],
    ['two', 'short', '22'],
  ];
  expect(formatTable(rows, { align: 'llr', width: 27, wrap: 1 })).toBe(
    'name  text                n\none   a text of several   1\n      words\ntwo   short              22\n',
  );
  expect(formatTable(rows, { align: 'llr', width: 80, wrap: 1 })).toBe(formatTable(rows, { align: 'llr' }));
  expect(wrapWords('one.two.three and more', 8)).toEqual(['one.two.', 'three', 'and more']);
});
