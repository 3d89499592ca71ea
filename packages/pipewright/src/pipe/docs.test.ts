/** @file docs/guide/model-to-stages.md: its tables name what is there. Its programs are run by docs/programs.test.ts. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import * as graph from '../index.ts';

const page = readFileSync(new URL('../../../../docs/guide/model-to-stages.md', import.meta.url), 'utf8');

test('its codes and names exist', () => {
  const files = ['trace', 'split', 'pipe', 'graph'].flatMap((folder) => {
    const dir = new URL(`../${folder}/`, import.meta.url);
    return readdirSync(dir).map((name) => new URL(name, dir));
  });
  const sources = files.map((file) => readFileSync(file, 'utf8')).join('\n');
  const codes = [...page.matchAll(/^\| ([A-Z_, ]+) \|/gm)].flatMap((match) => (match[1] as string).split(', '));
  expect(codes.length).toBeGreaterThan(8);
  for (const code of codes) expect(sources, code).toContain(`'${code}'`);
  for (const name of [
    'pipeline',
    'traceModule',
    'measureCosts',
    'SplitPoint',
    'pipeSplit',
    'PipeSequential',
    'describePipe',
  ])
    expect(graph, name).toHaveProperty(name);
});
