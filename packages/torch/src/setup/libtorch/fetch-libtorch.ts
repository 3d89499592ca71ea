/**
 * @file Fills the libtorch folder that a user's projects share: the needed files of the torch wheel and of two CUDA wheels,
 * each checked against its wheel's hashes. Headers come when something has to be compiled. Killed at any moment, the next
 * run starts over and loses nothing but time.
 */
import { createHash } from 'node:crypto';
import {
  createReadStream,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
} from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { AddonError } from '../base/addon-error.ts';
import { withLock } from '../base/lock.ts';
import { DEFAULT_TORCH } from '../base/places.ts';
import { cudaRequirements, extraRequirements, listWheel, nvidiaWheel } from './cuda-wheels.ts';
import { type DownloadOptions, downloadWheel, findWheel } from './download-wheel.ts';
import { parseVersionPy, STAMP_FILE } from './find-libtorch.ts';
import { cudaWheels, type LibtorchPart, torchWheel, type WheelNeed } from './parts.ts';
import { type RecordLine, Wheel } from './wheel.ts';
import { WHEEL_HASHES } from './wheel-hashes.ts';

export interface FetchOptions extends DownloadOptions {
  /** Which torch; the tested default unless told. */
  readonly version?: string;
  /** What is wanted beside the libraries; the headers unless told. */
  readonly parts?: readonly LibtorchPart[];
  /** The hashes of known wheels by file name; those of wheel-hashes.ts unless told. */
  readonly hashes?: ReadonlyMap<string, string>;
  /** Hash every unpacked file again instead of looking at sizes only. */
  readonly verify?: boolean;
}

/** Written last. `files` is what was unpacked, for later checks. */
export interface LibtorchStamp {
  readonly version: string;
  /** Older folders have no list, and both parts. */
  readonly parts?: readonly LibtorchPart[];
  readonly wheels: readonly string[];
  readonly files: Readonly<Record<string, RecordLine>>;
}

export interface FetchResult {
  readonly dir: string;
  /** False when everything was there already. */
  readonly fetched: boolean;
}

/** Room for the wheels and for the unpacked files, with some to spare; NVIDIA's libraries take far more. */
const BYTES_NEEDED = 700e6;
const BYTES_NEEDED_CUDA = 9e9;
/** Files unpacked at a time: most are small headers, and inflating and writing wait for different things. */
const AT_ONCE = 8;

export async function fetchLibtorch(options: FetchOptions): Promise<FetchResult> {
  const { places, progress } = options;
  const version = options.version ?? DEFAULT_TORCH;
  const everyHash = options.verify === true;
  const dir = places.libtorchDir;
  const ready: FetchResult = { dir, fetched: false };
  const wanted: readonly LibtorchPart[] = [...new Set<LibtorchPart>(['runtime', ...(options.parts ?? ['headers'])])];
  // Nobody who has all needs to wait for another one. Hashes are looked at under the lock: it takes seconds.
  if (!everyHash && missingParts(dir, wanted).length === 0 && (await checkLibtorch(dir, version, false)) === null)
    return ready;
  const lock = {
    what: `fetching libtorch ${version}`,
    onWait: (message: string): void => progress.say(message),
  };
  return withLock(`${dir}.lock`, lock, async () => {
    const problem = await checkLibtorch(dir, version, everyHash);
    const missing = missingParts(dir, wanted);
    if (problem === null && missing.length === 0) return ready;
    if (problem !== null && existsSync(dir)) progress.say(`libtorch is fetched again: ${problem}`);
    const bytes = missing.includes('cuda') ? BYTES_NEEDED_CUDA : BYTES_NEEDED;
    for (const disk of [dirname(dir), places.cacheDir]) requireSpace(disk, bytes);
    const tempDir = `${dir}.tmp`;
    await rm(tempDir, { recursive: true, force: true });
    mkdirSync(tempDir, { recursive: true });
    const old = problem === null ? readStamp(dir) : null;
    const parts = problem === null ? missing : wanted;
    const stamp = await unpackAll(version, parts, tempDir, options);
    if (old === null) {
      await writeFile(join(tempDir, STAMP_FILE), JSON.stringify(stamp));
      replaceFolder(tempDir, dir, `${dir}.old`);
    } else await addParts({ dir, tempDir, old, stamp });
    for (const left of [tempDir, `${dir}.old`]) await rm(left, { recursive: true, force: true });
    return { dir, fetched: true };
  });
}

/** Which of these the folder does not have. */
function missingParts(dir: string, wanted: readonly LibtorchPart[]): LibtorchPart[] {
  const stamp = readStamp(dir);
  if (stamp === null) return [...wanted];
  const there = stamp.parts ?? ['runtime', 'headers'];
  return wanted.filter((part) => !there.includes(part));
}

interface Addition {
  readonly dir: string;
  readonly tempDir: string;
  readonly old: LibtorchStamp;
  readonly stamp: LibtorchStamp;
}

/** Moves new files into a folder that others may be using: nothing that is there is touched, and the stamp comes last. */
async function addParts({ dir, tempDir, old, stamp }: Addition): Promise<void> {
  for (const name of Object.keys(stamp.files)) {
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    renameSync(join(tempDir, name), join(dir, name));
  }
  const whole: LibtorchStamp = {
    version: old.version,
    parts: [...(old.parts ?? ['runtime', 'headers']), ...(stamp.parts ?? [])],
    wheels: [...new Set([...old.wheels, ...stamp.wheels])],
    files: { ...old.files, ...stamp.files },
  };
  const draft = join(tempDir, STAMP_FILE);
  await writeFile(draft, JSON.stringify(whole));
  renameSync(draft, join(dir, STAMP_FILE));
}

/** Null when the folder is whole; else what is wrong with it. By sizes of the libraries, or by every hash. */
export async function checkLibtorch(dir: string, version: string, everyHash: boolean): Promise<string | null> {
  const stamp = readStamp(dir);
  if (stamp === null) return 'it is not finished';
  if (stamp.version !== version) return `it is ${stamp.version}, wanted ${version}`;
  for (const [name, expected] of Object.entries(stamp.files)) {
    if (!everyHash && !name.includes('.so')) continue;
    const path = join(dir, name);
    const size = statSync(path, { throwIfNoEntry: false })?.size;
    if (size === undefined) return `${name} is missing`;
    if (size !== expected.size) return `${name} has ${size} bytes, expected ${expected.size}`;
    if (everyHash && (await hashFile(path)) !== expected.sha256) return `${name} does not have its hash`;
  }
  return null;
}

export function readStamp(dir: string): LibtorchStamp | null {
  try {
    return JSON.parse(readFileSync(join(dir, STAMP_FILE), 'utf8')) as LibtorchStamp;
  } catch {
    return null;
  }
}

async function unpackAll(
  version: string,
  parts: readonly LibtorchPart[],
  tempDir: string,
  options: FetchOptions,
): Promise<LibtorchStamp> {
  const files: Record<string, RecordLine> = {};
  const target = { tempDir, parts };
  const torch = await unpackWheel(torchWheel(version), target, options);
  Object.assign(files, torch.files);
  const wheels = [torch.wheel];
  if (parts.includes('runtime')) {
    const { cudaVersion } = parseVersionPy(readFileSync(join(tempDir, 'torch', 'version.py'), 'utf8'));
    for (const need of cudaWheels(cudaVersion)) {
      const part = await unpackWheel(need, target, options);
      Object.assign(files, part.files);
      wheels.push(part.wheel);
    }
  }
  if (parts.includes('cuda')) {
    for (const need of await cudaNeeds(await downloadWheel(torchWheel(version), options), options)) {
      const part = await unpackWheel(need, target, options);
      Object.assign(files, part.files);
      wheels.push(part.wheel);
    }
  }
  return { version, parts, wheels: [...new Set(wheels)], files };
}

/** The wheels that the torch wheel requires of NVIDIA, those behind the toolkit's extras included. */
async function cudaNeeds(torch: string, options: FetchOptions): Promise<WheelNeed[]> {
  const needs: WheelNeed[] = [];
  for (const requirement of cudaRequirements(await readMetadata(torch))) {
    if (requirement.extras.length === 0) {
      needs.push(nvidiaWheel(requirement));
      continue;
    }
    const list = await downloadWheel(listWheel(requirement), options);
    await checkHash(list, options);
    needs.push(...extraRequirements(await readMetadata(list), requirement.extras).map(nvidiaWheel));
  }
  return needs;
}

async function readMetadata(path: string): Promise<string> {
  const wheel = await Wheel.open(path);
  try {
    const name = [...wheel.entries.keys()].find((entry) => /^[^/]+\.dist-info\/METADATA$/.test(entry));
    return name === undefined ? '' : (await wheel.read(name)).toString('utf8');
  } finally {
    await wheel.close();
  }
}

interface Target {
  readonly tempDir: string;
  readonly parts: readonly LibtorchPart[];
}

interface Unpacked {
  readonly wheel: string;
  readonly files: Record<string, RecordLine>;
}

/** A damaged wheel in the cache is thrown away and brought again, once. */
async function unpackWheel(need: WheelNeed, target: Target, options: FetchOptions): Promise<Unpacked> {
  const wasCached = findWheel(join(options.places.cacheDir, 'wheels'), need) !== null;
  const path = await downloadWheel(need, options);
  try {
    return await unpackFrom(path, need, target, options);
  } catch (error) {
    if (!(error instanceof AddonError) || error.code !== 'WHEEL_CORRUPT') throw error;
    rmSync(path, { force: true });
    if (!wasCached) throw error;
    options.progress.say(`${error.message.split(';')[0]}: downloading it again`);
    return unpackFrom(await downloadWheel(need, options), need, target, options);
  }
}

async function unpackFrom(path: string, need: WheelNeed, target: Target, options: FetchOptions): Promise<Unpacked> {
  await checkHash(path, options);
  const wheel = await Wheel.open(path);
  const label = `unpack ${basename(path)}`;
  const files: Record<string, RecordLine> = {};
  try {
    const wanted = [...wheel.entries.values()].filter((entry) => {
      const part = need.partOf(entry.name);
      return part !== null && target.parts.includes(part);
    });
    const total = wanted.reduce((sum, entry) => sum + entry.size, 0);
    options.progress.say(`${label} (${wanted.length} files, ${(total / 1e6).toFixed(0)} MB)`);
    let done = 0;
    const onBytes = (count: number): void => {
      done += count;
      options.progress.step(label, done, total);
    };
    const rest = wanted.toSorted((a, b) => a.size - b.size); // the largest is begun first
    const unpackSome = async (): Promise<void> => {
      for (let entry = rest.pop(); entry !== undefined; entry = rest.pop())
        files[entry.name] = await wheel.unpack(entry.name, join(target.tempDir, entry.name), onBytes);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, unpackSome));
  } finally {
    await wheel.close();
    options.progress.end(label);
  }
  return { wheel: basename(path), files };
}

/** The whole wheel against the hash in our list. One that is not listed is checked against its own list only, and that is said. */
async function checkHash(path: string, { hashes = WHEEL_HASHES, progress }: FetchOptions): Promise<void> {
  const expected = hashes.get(basename(path));
  if (expected === undefined) {
    progress.say(
      `${basename(path)} is not among the wheels with a known hash; its files are checked against its own list`,
    );
    return;
  }
  const sha256 = await hashFile(path);
  if (sha256 !== expected)
    throw new AddonError(
      'WHEEL_CORRUPT',
      `fetchLibtorch: ${path} has SHA-256 ${sha256}, but ${expected} was published; delete it and run: npx pipewright setup`,
    );
}

/** Between the two renames there is no folder; whoever is killed there finds none and unpacks again. */
function replaceFolder(from: string, to: string, aside: string): void {
  if (existsSync(to)) renameSync(to, aside);
  renameSync(from, to);
}

function requireSpace(dir: string, bytes: number): void {
  mkdirSync(dir, { recursive: true });
  const { bavail, bsize } = statfsSync(dir);
  if (bavail * bsize < bytes)
    throw new AddonError(
      'DISK_TOO_FULL',
      `fetchLibtorch: ${dir} has ${((bavail * bsize) / 1e6).toFixed(0)} MB free, ${bytes / 1e6} MB are needed; ` +
        'free some, or set PIPEWRIGHT_HOME (libtorch) or PIPEWRIGHT_CACHE (downloads) to another disk',
    );
}

async function hashFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  if (statSync(path).size < 1e6) return hash.update(readFileSync(path)).digest('hex');
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash);
  return hash.digest('hex');
}
