// @ts-check
/**
 * @file Brings what is missing, in this order: npm packages, the TypeScript build, libtorch, the addon. Says what it
 * does and how far it is; does nothing where nothing is missing. Run by hand: `npm run build`.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { endLeftover, runChild } from './generated/child.mjs';
import { withLock } from './generated/lock.mjs';

export const root = fileURLToPath(new URL('..', import.meta.url));
const stateDir = join(root, '.pipewright');
const stampFile = join(stateDir, 'build.json');
const lockFile = join(stateDir, 'bootstrap.lock');
const pidFile = join(stateDir, 'bootstrap.pid');

/**
 * Everything; the engine (libtorch and addon) can be left out, and type errors can be let pass: the build is written anyway.
 * @param {{ engine?: boolean, typeErrors?: 'fail' | 'pass' }} [options]
 */
export async function bootstrap(options = {}) {
  requireNode();
  const pass = options.typeErrors === 'pass';
  if (!packagesAreCurrent() || !buildIsCurrent(pass)) {
    const lock = { what: 'building the workspace', onWait: say };
    await withLock(lockFile, lock, async () => {
      await endLeftover(pidFile); // of a run that was killed
      if (!packagesAreCurrent()) await installPackages();
      if (!buildIsCurrent(pass)) await compile(pass);
    });
  }
  if (options.engine !== false) await bringEngine();
}

/** @param {string} message */
function say(message) {
  process.stderr.write(`pipewright: ${message}\n`);
}

/** @param {string} message @returns {never} */
function fail(message) {
  say(message);
  process.exit(1);
}

function requireNode() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  if (major < 20 || (major === 20 && minor < 19))
    fail(`Node ${process.version} is too old: 20.19 or later is needed; bring it with: nvm install 22`);
}

/**
 * Whether node_modules holds what package-lock.json asks for. npm writes its own list last, so an interrupted install
 * has none or an old one.
 */
export function packagesAreCurrent(dir = root) {
  const wanted = readLock(join(dir, 'package-lock.json'));
  const present = readLock(join(dir, 'node_modules/.package-lock.json'));
  if (wanted === null) fail('package-lock.json is missing: is the checkout complete?');
  if (present === null) return false;
  for (const [path, entry] of Object.entries(wanted)) {
    if (!path.startsWith('node_modules/')) {
      // A package of ours: its commands are linked at install.
      if (Object.keys(entry.bin ?? {}).some((name) => !existsSync(join(dir, 'node_modules/.bin', name)))) return false;
      continue;
    }
    const installed = present[path];
    if (installed === undefined) {
      if (!entry.optional) return false;
      continue; // for another platform
    }
    if (installed.version !== entry.version || installed.integrity !== entry.integrity) return false;
    if (!existsSync(join(dir, path, 'package.json'))) return false;
  }
  return true;
}

/**
 * @typedef {{ version?: string, integrity?: string, optional?: boolean, bin?: Record<string, string> }} LockEntry
 * @param {string} path
 * @returns {Record<string, LockEntry> | null}
 */
function readLock(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8')).packages;
  } catch {
    return null;
  }
}

async function installPackages() {
  say('1/3 npm packages: npm ci');
  // No package of ours needs its install script, and npm would warn about those that it does not run.
  if ((await npm('ci', '--ignore-scripts')) === 0) return;
  say('npm ci does not accept package-lock.json with this registry (above): npm install, without changing it');
  if ((await npm('install', '--no-save', '--ignore-scripts')) === 0) return;
  fail('npm could not install (above); check the network and the registry settings: npm config get registry');
}

/** The npm that runs us, else the one in PATH. @param {string[]} args */
function npm(...args) {
  const script = process.env['npm_execpath'];
  const all = [...args, '--no-audit', '--no-fund'];
  return script?.endsWith('.js') ? run(process.execPath, [script, ...all]) : run('npm', all);
}

/**
 * Runs a program in the workspace, its output on ours.
 * @param {string} command
 * @param {string[]} args
 * @returns {Promise<number>} the exit status
 */
async function run(command, args) {
  const onLine = (/** @type {string} */ line) => process.stderr.write(`${line}\n`);
  const { status } = await runChild({ command, args, cwd: root, env: process.env, pidFile, onLine });
  return status;
}

/**
 * The sources and the outputs are those of the last build, by path, size and time.
 * @param {boolean} letErrorsPass
 */
function buildIsCurrent(letErrorsPass) {
  const stamp = readStamp();
  if (stamp === null || (stamp.errors && !letErrorsPass)) return false;
  return stamp.inputs === fingerprint(inputFiles()) && stamp.outputs === fingerprint(outputFiles());
}

/** @param {boolean} letErrorsPass */
async function compile(letErrorsPass) {
  say('2/3 TypeScript: tsc -b');
  const before = fingerprint(inputFiles());
  const stamp = readStamp();
  // Outputs that somebody changed or deleted are not looked at by the compiler, so it is told to write all.
  const force = stamp !== null && !stamp.errors && stamp.inputs === before ? ['--force'] : [];
  const tsc = join(root, 'node_modules/typescript/bin/tsc');
  const status = await run(process.execPath, [tsc, '-b', ...force]);
  const errors = status !== 0 || (await run(process.execPath, [join(root, 'packages/studio/build.mjs')])) !== 0;
  mkdirSync(stateDir, { recursive: true });
  writeFileSync(stampFile, JSON.stringify({ inputs: before, outputs: fingerprint(outputFiles()), errors }));
  if (errors && !letErrorsPass) fail('the TypeScript build failed (above)');
  if (errors) say('the TypeScript build has errors (above)');
}

/** @returns {{ inputs: string, outputs: string, errors: boolean } | null} */
function readStamp() {
  try {
    return JSON.parse(readFileSync(stampFile, 'utf8'));
  } catch {
    return null;
  }
}

function projectDirs() {
  const packages = join(root, 'packages');
  return [...readdirSync(packages).map((name) => join(packages, name)), join(root, 'examples')].filter((dir) =>
    existsSync(join(dir, 'tsconfig.json')),
  );
}

function inputFiles() {
  const top = readdirSync(root).filter((name) => /^(package|tsconfig.*)\.json$/.test(name));
  const files = top.map((name) => join(root, name));
  for (const dir of projectDirs()) {
    files.push(join(dir, 'tsconfig.json'));
    if (existsSync(join(dir, 'package.json'))) files.push(join(dir, 'package.json'));
    const sources = existsSync(join(dir, 'src')) ? join(dir, 'src') : dir;
    files.push(...walk(sources).filter((file) => /\.(tsx?|css)$/.test(file) && !/\.test\.tsx?$/.test(file)));
    if (existsSync(join(dir, 'build.mjs'))) files.push(join(dir, 'build.mjs'));
  }
  return files;
}

function outputFiles() {
  return projectDirs().flatMap((dir) => walk(join(dir, 'dist')));
}

/** @param {string} dir @returns {string[]} */
function walk(dir) {
  if (!existsSync(dir)) return [];
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    const path = join(dir, entry.name);
    if (entry.isDirectory()) return entry.name === 'node_modules' || entry.name === 'dist' ? [] : walk(path);
    return [path];
  });
}

/** @param {string[]} files */
function fingerprint(files) {
  const hash = createHash('sha256');
  for (const file of files.sort()) {
    const stat = statSync(file, { throwIfNoEntry: false });
    hash.update(`${file}\0${stat?.size}\0${stat?.mtimeMs}\n`);
  }
  return hash.digest('hex');
}

async function bringEngine() {
  const { LineProgress, runSetup } = await import(pathToFileURL(join(root, 'packages/torch/dist/setup/index.js')).href);
  const progress = new LineProgress();
  const told = { say: (/** @type {string} */ message) => progress.say(`pipewright: 3/3 engine: ${message}`) };
  try {
    await runSetup({
      progress: { say: told.say, step: progress.step.bind(progress), end: progress.end.bind(progress) },
    });
  } catch (error) {
    if (!(error instanceof Error && 'code' in error)) throw error;
    fail(error.message);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  await bootstrap({ engine: !process.argv.includes('--no-engine') });
