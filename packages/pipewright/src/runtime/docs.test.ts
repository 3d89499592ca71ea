/** @file docs/guide/stages.md: its tables name options and codes that exist. Its programs are run by docs/programs.test.ts. */
import { readdirSync, readFileSync } from 'node:fs';
import * as schedule from '@pipewright/schedule';
import { expect, test } from 'vitest';

const page = readFileSync(new URL('../../../../docs/guide/stages.md', import.meta.url), 'utf8');
const recording = readFileSync(new URL('../../../../docs/guide/recording.md', import.meta.url), 'utf8');

/** The sources of folders beside this one. */
function sources(...folders: string[]): string {
  return folders
    .flatMap((folder) => {
      const dir = new URL(`../${folder}/`, import.meta.url);
      return readdirSync(dir, { recursive: true, encoding: 'utf8' })
        .filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))
        .map((name) => readFileSync(new URL(name, dir), 'utf8'));
    })
    .join('\n');
}

test('the tables name options that exist', () => {
  const options = [...page.matchAll(/^\| ((?:`\w+`(?:, )?)+) \|/gm)].flatMap((row) =>
    [...(row[1] as string).matchAll(/`([a-z]\w+)`/g)].map((match) => match[1] as string),
  );
  expect(options.length).toBeGreaterThan(20);
  const code = sources('runtime', 'microbatch', 'stage');
  for (const name of options) expect(code).toMatch(new RegExp(`readonly ${name}\\?:`));
});

test('codes and functions that are named exist', () => {
  const code = sources('runtime', 'microbatch', 'stage');
  for (const [, name] of page.matchAll(/`([A-Z]+_[A-Z_]+|BROKEN)`/g)) expect(code).toContain(`'${name}'`);
  const named = [...recording.matchAll(/`(recorded\w+|recording\w+|meanCosts)`/g)].map((match) => match[1]);
  expect(named.length).toBeGreaterThan(2);
  for (const name of named) expect(Object.keys(schedule)).toContain(name);
});
