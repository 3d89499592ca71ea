/** @file A launcher to be killed: starts three ranks, and prints the file of their places. For tests. */
import { readFileSync } from 'node:fs';
import { launch } from '../../dist/launch/launcher.js';

const ranks = launch({
  ranks: 3,
  script: new URL('./scenarios.ts', import.meta.url),
  data: JSON.parse(process.argv[2] ?? ''),
});
while (ranks.pids().length < 3) await new Promise((resolve) => setTimeout(resolve, 10));
const variables = readFileSync(`/proc/${ranks.pids()[0]}/environ`, 'utf8').split('\0');
console.log(variables.find((one) => one.startsWith('PIPEWRIGHT_STATUS_FILE='))?.split('=')[1]);
await ranks.done;
