// @ts-check
/** @file `npm start`: brings what is missing, then trains a small GPT in stages (examples/02-train-gpt-pipeline); arguments go to it. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { bootstrap, root } from './bootstrap.mjs';

await bootstrap();
const job = join(root, 'examples/dist/02-train-gpt-pipeline/train.js');
if (!existsSync(job)) {
  console.error(`pipewright: ${job} is missing: is the checkout complete?`);
  process.exit(1);
}
process.argv[1] = job;
await import(pathToFileURL(job).href);
