// @ts-check
/** @file The real file system, except that the process is killed before call number `DIE_AT`; for the writing thread of a test. */
import * as fs from 'node:fs';
import process from 'node:process';

const dieAt = Number(process.env['DIE_AT'] ?? 0);
let calls = 0;

/** @type {Record<string, (...args: any[]) => any>} */
const real = /** @type {any} */ (fs);

export const fileSystem = Object.fromEntries(
  [
    ...['openSync', 'writeSync', 'fsyncSync', 'closeSync', 'renameSync', 'mkdirSync', 'unlinkSync', 'rmdirSync'],
    ...['readdirSync', 'readFileSync', 'existsSync'],
  ].map((name) => [
    name,
    /** @param {any[]} args */
    (...args) => {
      if (++calls === dieAt) process.kill(process.pid, 'SIGKILL');
      return /** @type {(...args: any[]) => any} */ (real[name])(...args);
    },
  ]),
);
