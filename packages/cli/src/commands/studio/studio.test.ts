/** @file `pipewright studio`: the folder of a job written into a page, and one without a job. */
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { bin, cli, environment, folder } from '../../../testing/run-cli.ts';

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

test('a folder that no job has written into is served, and that is said', async () => {
  mkdirSync(join(folder, 'early'));
  const child = spawn(process.execPath, [bin, 'studio', 'early'], { cwd: folder, env: environment });
  let said = '';
  child.stderr.on('data', (data) => (said += String(data)));
  child.stdout.on('data', () => child.kill('SIGTERM')); // the address
  const code = await new Promise((resolve) => child.once('exit', resolve));
  expect(said).toBe('pipewright: no job has written into early yet; `pipewright run --live early …` does\n');
  expect(code).toBe(0);
}, 60_000);

test('compressed traces are unpacked; what is no gzip is refused', () => {
  const trace = '{"traceEvents":[{"ph":"X","name":"PP:0F0","ts":1,"dur":1}]}';
  writeFileSync(join(folder, 'trace.json.gz'), gzipSync(trace));
  expect(cli('studio trace.json.gz --export packed.html')).toMatchObject({ code: 0, err: '' });
  const page = readFileSync(join(folder, 'packed.html'), 'utf8');
  const { files } = JSON.parse(/id="data">(.*?)<\/script>/.exec(page)![1]!) as Record<string, unknown>;
  expect(files).toEqual([{ name: 'trace.json', text: trace }]);
  writeFileSync(join(folder, 'plain.json.gz'), trace);
  expect(cli('studio plain.json.gz --export no.html')).toMatchObject({
    code: 2,
    err: 'pipewright: cannot unpack plain.json.gz: incorrect header check\n',
  });
  expect(cli('studio gone.json.gz').err).toBe('pipewright: cannot unpack gone.json.gz: no such file or folder\n');
});
