// @ts-check
/** @file Builds the addon by hand, incrementally: `node scripts/build-native.mjs`. Result: .pipewright/addon/dev/pipewright.node. */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const torch = process.env['PIPEWRIGHT_LIBTORCH'] ?? join(root, '.pipewright/libtorch/torch');
const build = join(root, '.pipewright/build/dev');
const out = join(root, '.pipewright/addon/dev');

/** @param {string} command @param {string[]} args */
function run(command, args) {
  const { status } = spawnSync(command, args, { stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

mkdirSync(build, { recursive: true });
mkdirSync(out, { recursive: true });
const hasNinja = spawnSync('ninja', ['--version']).status === 0;
if (!existsSync(join(build, 'CMakeCache.txt')))
  run('cmake', [
    '-S',
    join(root, 'packages/torch/native'),
    '-B',
    build,
    ...(hasNinja ? ['-G', 'Ninja'] : []),
    `-DPIPEWRIGHT_TORCH_DIR=${torch}`,
    `-DPIPEWRIGHT_NODE_API_INCLUDE=${join(root, 'node_modules/node-api-headers/include')}`,
  ]);
run('cmake', ['--build', build, '-j', '2']);
copyFileSync(join(build, 'pipewright.node'), join(out, 'pipewright.node.tmp'));
renameSync(join(out, 'pipewright.node.tmp'), join(out, 'pipewright.node'));
console.log(`built ${join(out, 'pipewright.node')}`);
