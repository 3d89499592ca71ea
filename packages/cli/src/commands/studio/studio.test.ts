/** @file `pipewright studio --export`: files and the folder of a job written into a page. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

test('the folder of a job that has ended becomes a page with all it has told; another folder is refused', () => {
  mkdirSync(join(folder, 'live'));
  expect(cli('studio live --export page.html')).toMatchObject({
    code: 2,
    err: expect.stringContaining('live is not the folder of a job: `pipewright run --live live …` writes one'),
  });
  writeFileSync(join(folder, 'live/rank-0.jsonl'), '{"kind":"run","process":"first"}\n{"kind":"step","step":7}\n');
  writeFileSync(join(folder, 'live/launcher.jsonl'), '{"kind":"status","ended":{"failed":false,"message":""}}\n');
  writeFileSync(join(folder, 'live/notes.txt'), 'not of the job\n');
  expect(cli('studio live --export page.html')).toMatchObject({ code: 0, err: '' });
  const page = readFileSync(join(folder, 'page.html'), 'utf8');
  const { lines, events } = JSON.parse(/id="data">(.*?)<\/script>/.exec(page)![1]!) as Record<string, unknown>;
  expect(events).toBeNull();
  expect(lines).toEqual([
    '-1 {"kind":"status","ended":{"failed":false,"message":""}}',
    '0 {"kind":"run","process":"first"}',
    '0 {"kind":"step","step":7}',
  ]);
});
