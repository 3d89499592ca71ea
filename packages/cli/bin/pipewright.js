#!/usr/bin/env node
/** @file Starts the compiled command line; in a fresh clone it says how to compile it. */
import { existsSync } from 'node:fs';

const main = new URL('../dist/main.js', import.meta.url);
if (existsSync(main)) {
  const { main: run } = await import(main.href);
  await run(process.argv);
} else {
  console.error('pipewright: not built yet; build it with: npm run build');
  process.exitCode = 1;
}
