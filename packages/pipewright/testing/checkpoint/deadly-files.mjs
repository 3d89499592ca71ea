// @ts-check
/**
 * @file The real file system, except that the process is killed before call number `DIE_AT`, counted from the first whose path has
 * `DIE_AFTER` in it; for the writing thread of a test.
 */
import * as fs from 'node:fs';
import process from 'node:process';
import { makeFolder } from '@pipewright/torch/files';

const dieAt = Number(process.env['DIE_AT'] ?? 0);
const after = process.env['DIE_AFTER'] ?? '';
let calls = 0;
let isCounting = after === '';

/** @type {Record<string, (...args: any[]) => any>} */
const real = /** @type {any} */ ({ ...fs, makeFolder });

export const fileSystem = Object.fromEntries(
  [
    ...['openSync', 'writeSync', 'fsyncSync', 'closeSync', 'renameSync', 'makeFolder', 'unlinkSync', 'rmdirSync'],
    ...['readdirSync', 'readFileSync', 'existsSync'],
  ].map((name) => [
    name,
    /** @param {any[]} args */
    (...args) => {
      isCounting ||= String(args[0]).includes(after);
      if (isCounting && ++calls === dieAt) process.kill(process.pid, 'SIGKILL');
      return /** @type {(...args: any[]) => any} */ (real[name])(...args);
    },
  ]),
);
