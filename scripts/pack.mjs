// @ts-check
/**
 * @file `npm run pack`: tarballs of all packages, as they would be published, into out/ or the folder given. The engine's has the
 * addon for this platform and libtorch in it, so that who installs it needs no compiler.
 */
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { bootstrap, root } from './bootstrap.mjs';

/**
 * Makes the tarballs; returns their paths.
 * @param {string} outDir
 * @returns {Promise<string[]>}
 */
export async function packAll(outDir) {
  await bootstrap();
  mkdirSync(outDir, { recursive: true });
  // A copy: the addon must not lie in the workspace, which compiles its own.
  const engine = join(mkdtempSync(join(tmpdir(), 'pipewright-pack-')), 'torch');
  try {
    const original = join(root, 'packages/torch');
    for (const name of ['dist', 'src', 'native', 'package.json', 'README.md', 'LICENSE'])
      cpSync(join(original, name), join(engine, name), { recursive: true });
    await addPrebuilt(engine);
    return packageDirs().map((dir) => packOne(dir === original ? engine : dir, outDir));
  } finally {
    rmSync(dirname(engine), { recursive: true, force: true });
  }
}

/** The folders of the packages that are published. */
export function packageDirs() {
  return readdirSync(join(root, 'packages'))
    .map((name) => join(root, 'packages', name))
    .filter((dir) => {
      const manifest = join(dir, 'package.json');
      return existsSync(manifest) && JSON.parse(readFileSync(manifest, 'utf8')).private !== true;
    });
}

/**
 * @param {string} dir
 * @param {string} outDir
 */
function packOne(dir, outDir) {
  const script = process.env['npm_execpath'];
  const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', outDir];
  const { status, stdout, stderr } = script?.endsWith('.js')
    ? spawnSync(process.execPath, [script, ...args], { cwd: dir, encoding: 'utf8' })
    : spawnSync('npm', args, { cwd: dir, encoding: 'utf8' });
  if (status !== 0) throw new Error(`npm pack failed in ${dir}:\n${stderr}`);
  return join(outDir, JSON.parse(stdout)[0].filename);
}

/**
 * Puts the addon of this machine into the engine's package, without the places it was built in.
 * @param {string} packageDir
 */
async function addPrebuilt(packageDir) {
  const { runSetup } = await import(pathToFileURL(join(root, 'packages/torch/dist/setup/index.js')).href);
  const { addon, libtorch } = await runSetup();
  const { builtFrom: _, ...stamp } = addon.stamp;
  // Why there is none for CUDA has to do with the machine that packs; whoever installs is told what to do.
  const withoutCuda =
    stamp.withoutCuda === null ? null : 'none came with the package; built by: npx pipewright setup --cuda';
  const dir = join(packageDir, 'prebuilt', `${stamp.key.platform}-libtorch-${libtorch.version.replace(/\+.*/, '')}`);
  mkdirSync(dir, { recursive: true });
  for (const name of readdirSync(addon.dir).filter((file) => file.endsWith('.node')))
    copyFileSync(join(addon.dir, name), join(dir, name));
  const key = { ...stamp.key, libtorchDir: '' };
  writeFileSync(join(dir, 'stamp.json'), `${JSON.stringify({ ...stamp, key, withoutCuda }, null, 2)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder = join(root, 'out'), ...more] = process.argv.slice(2);
  if (folder.startsWith('-') || more.length > 0) {
    console.error(`pack: '${[folder, ...more].join(' ')}' is not a folder; use: npm run pack [-- FOLDER]`);
    process.exit(2);
  }
  for (const file of await packAll(resolve(folder))) console.log(file);
}
