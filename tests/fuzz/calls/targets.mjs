// @ts-check
/** @file The public functions, constructors and methods that are called. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as schedule from '@pipewright/schedule';
import * as torch from '@pipewright/torch';
import * as pipewright from 'pipewright';
import * as launcher from 'pipewright/launch';
import { instance, made } from './values.mjs';

/** @typedef {{ name: string, call: (args: unknown[]) => unknown }} Target */

/**
 * Not called: what starts ranks or waits for other processes when it gets what it asks for, and what ends or changes this one.
 * What such functions are given is checked in tests of their own.
 */
const skipped = new Map([
  ['distributed.initProcessGroup', 'waits for other ranks'],
  ['distributed.launchThreads', 'starts threads'],
  ['distributed.runThreads', 'starts threads'],
  ['torch.releaseHandle', 'works on bare handles, for the addon and its tests'],
  ['torch.releaseHandles', 'works on bare handles'],
  ['torch.DType', 'element types are there, nobody makes one'],
  ['torch.FunctionContext', 'made for custom functions, not by them'],
  ['torch.callGiven', 'called with what bindOp gives, for generated functions'],
  ['nn.RunningNorm', 'an abstract class'],
  ['new pipewright.Pipe', 'its constructor is private: pipeline() makes one'],
  ['new pipewright.ParquetDataset', 'its constructor is private: ParquetDataset.open() makes one'],
  ['torch.sleepInKernel', 'takes as long as it is told'],
]);

/**
 * Names declared private in TypeScript, by class: such methods are no part of the public face.
 * @returns {Map<string, Set<string>>}
 */
function privateNames() {
  /** @type {Map<string, Set<string>>} */
  const found = new Map();
  for (const name of ['torch', 'pipewright', 'schedule']) {
    const folder = fileURLToPath(new URL(`../../../packages/${name}/dist`, import.meta.url));
    for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
      if (!file.endsWith('.d.ts')) continue;
      let names = new Set();
      for (const line of readFileSync(join(folder, file), 'utf8').split('\n')) {
        const owner = /^(?:export )?(?:declare )?(?:abstract )?class ([\w$]+)/.exec(line)?.[1];
        if (owner !== undefined) found.set(owner, (names = found.get(owner) ?? new Set()));
        const name = /^\s+(?:private|protected) (?:static )?(?:readonly |get |set |abstract )*([\w$]+)/.exec(line)?.[1];
        if (name !== undefined) names.add(name);
      }
    }
  }
  return found;
}

/** Whether a function must be called with `new`. @param {Function} value */
function isClass(value) {
  return /^class\b/.test(Function.prototype.toString.call(value));
}

/**
 * All targets, always in the same order, in groups that are called equally often: one function for each operator would
 * else leave little room for the others.
 * @returns {Target[][]}
 */
export function listTargets() {
  const targets = allTargets();
  const groups = [
    /^torch\./,
    /^<(?!linear|sequential|optimizer|stage|runtime|graph|pipe)/,
    /^</,
    /^(new )?nn\.functional/,
    /^(new )?nn\./,
    /^(new )?(torch|optim|distributed|cuda|fft|linalg|special)\./,
    /^(new )?pipewright\./,
    /^/,
  ];
  /** @type {Target[][]} */
  const grouped = groups.map(() => []);
  for (const target of targets) grouped[groups.findIndex((group) => group.test(target.name))]?.push(target);
  return grouped;
}

/** @returns {Target[]} */
function allTargets() {
  /** @type {Target[]} */
  const targets = [];
  const seen = new Set();
  const hiddenOf = privateNames();
  /** @param {{ name: string }} owner @param {string} key */
  const isHidden = (owner, key) =>
    ['constructor', 'freeHandle'].includes(key) || hiddenOf.get(owner.name)?.has(key) === true;
  /** @param {string} name @param {unknown} value @param {unknown} self */
  const add = (name, value, self) => {
    if (typeof value !== 'function' || skipped.has(name)) return;
    if (value.prototype instanceof Error) return; // errors are thrown by the packages; nobody else makes them
    const run = /** @type {any} */ (value);
    if (isClass(value)) {
      if (!skipped.has(`new ${name}`)) targets.push({ name: `new ${name}`, call: (args) => new run(...args) });
      for (const key of Object.getOwnPropertyNames(value))
        if (!['length', 'name', 'prototype'].includes(key) && !isHidden(value, key))
          add(`${name}.${key}`, Object.getOwnPropertyDescriptor(value, key)?.value, value);
    } else targets.push({ name, call: (args) => run.apply(self, args) });
  };
  /** @param {string} prefix @param {object} space @param {number} depth */
  const walk = (prefix, space, depth) => {
    for (const [name, value] of Object.entries(space).sort(([a], [b]) => (a < b ? -1 : 1))) {
      if (seen.has(value)) continue;
      if (typeof value === 'function') {
        seen.add(value);
        add(`${prefix}.${name}`, value, space);
      } else if (typeof value === 'object' && value !== null && depth < 3 && isNamespace(value)) {
        seen.add(value);
        walk(depth === 0 ? name : `${prefix}.${name}`, value, depth + 1);
      }
    }
  };
  walk('torch', torch, 0);
  walk('pipewright', pipewright, 0);
  walk('launch', launcher, 0);
  walk('schedule', schedule, 0);
  for (const name of Object.keys(made).sort()) {
    const methods = new Set();
    const sample = instance(name);
    if (typeof sample !== 'object' || sample === null || Array.isArray(sample)) continue;
    for (let at = Object.getPrototypeOf(sample); at !== null && at !== Object.prototype; at = Object.getPrototypeOf(at))
      for (const key of Object.getOwnPropertyNames(at))
        if (typeof Object.getOwnPropertyDescriptor(at, key)?.value === 'function' && !isHidden(at.constructor, key))
          methods.add(key);
    for (const key of [...methods].sort())
      targets.push({ name: `<${name}>.${key}`, call: (args) => /** @type {any} */ (instance(name))[key](...args) });
  }
  return targets;
}

/** @param {object} value */
function isNamespace(value) {
  return (
    Object.prototype.toString.call(value) === '[object Module]' ||
    Object.getPrototypeOf(value) === null ||
    Object.getPrototypeOf(value) === Object.prototype
  );
}
