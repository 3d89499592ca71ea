/** @file The layer check finds planted violations and lets everything else pass. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  findCrowdedFolders,
  findFolderCycles,
  findImports,
  findViolations,
  MOST_FILES,
  withFolders,
} from './check-layers.mjs';

describe('findImports', () => {
  test('tells lazy imports from those at once', () => {
    const text = `
      import { a } from '@pipewright/schedule';
      import type { B } from '@pipewright/torch';
      export {
        c,
      } from './c.ts';
      import 'side-effect';
      // import { no } from 'commented';
      /* import { no } from 'commented-too'; */
      const d = await import('@pipewright/torch');`;
    expect(findImports(text)).toMatchInlineSnapshot(`
      [
        {
          "lazy": false,
          "specifier": "@pipewright/schedule",
        },
        {
          "lazy": true,
          "specifier": "@pipewright/torch",
        },
        {
          "lazy": false,
          "specifier": "./c.ts",
        },
        {
          "lazy": false,
          "specifier": "side-effect",
        },
        {
          "lazy": true,
          "specifier": "@pipewright/torch",
        },
      ]
    `);
  });
});

describe('findViolations', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'layers-'));
  });
  afterEach(() => rmSync(root, { recursive: true }));

  function plant(path: string, text: string): void {
    const file = join(root, 'packages', path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }

  test('names the file, the import and the rule', () => {
    for (const name of ['schedule', 'torch', 'cli', 'extra'])
      plant(`${name}/package.json`, '{ "dependencies": { "commander": "1" } }');
    plant('schedule/src/a.ts', "import { readFileSync } from 'node:fs';\nimport { t } from '@pipewright/torch';");
    plant('schedule/src/a.test.ts', "import { readFileSync } from 'node:fs';\nimport { test } from 'vitest';");
    plant('torch/src/b.ts', "import { x } from '../../schedule/src/a.ts';\nimport { y } from 'left-pad';");
    plant('cli/src/c.ts', "import { s } from '@pipewright/schedule';\nimport { t } from '@pipewright/torch/setup';");
    plant('cli/src/d.ts', "import { Command } from 'commander';\nawait import('@pipewright/torch');");
    expect(findViolations(root).join('\n')).toMatchInlineSnapshot(`
      "packages/cli/src/c.ts: imports '@pipewright/torch/setup': cli may import torch only lazily, with import()
      packages/extra: not in the table of scripts/layers.mjs; add it there
      packages/schedule/src/a.ts: imports 'node:fs': schedule also runs in a browser; keep Node out of it
      packages/schedule/src/a.ts: imports '@pipewright/torch': schedule may import none of our packages
      packages/torch/src/b.ts: imports '../../schedule/src/a.ts': leaves packages/torch; import the other package by its name
      packages/torch/src/b.ts: imports 'left-pad': left-pad is not among the dependencies of packages/torch/package.json"
    `);
  });

  test('folders keep to their rows', () => {
    plant('torch/package.json', '{}');
    plant('torch/src/index.ts', "export * from './nn/index.ts';");
    plant('torch/src/base/errors.ts', "import type { Tensor } from '../tensor/tensor.ts';");
    plant('torch/src/base/errors.test.ts', "import { Tensor } from '../tensor/tensor.ts';");
    plant('torch/src/tensor/tensor.ts', "import { TorchError } from '../base/errors.ts';\nimport '../index.ts';");
    plant('torch/src/nn/index.ts', "export * from './modules/linear.ts';");
    plant('torch/src/nn/module.ts', "import { Linear } from './modules/linear.ts';");
    plant('torch/src/nn/modules/linear.ts', "import { Module } from '../module.ts';");
    plant('torch/src/optim/fused/deep.ts', "import { optimizer } from '../optimizer.ts';");
    plant('torch/src/attic/old.ts', '');
    plant('torch/native/core/core.h', '#include <vector>\n#include "tensor/tensor.h"');
    plant('torch/native/tensor/tensor.h', '#include "core/core.h"');
    expect(findViolations(root).join('\n')).toMatchInlineSnapshot(`
      "packages/torch/src/attic/old.ts: its folder is not in the table of scripts/layers.mjs; add it there
      packages/torch/src/base/errors.ts: imports '../tensor/tensor.ts': base may import no folder
      packages/torch/src/nn/module.ts: imports './modules/linear.ts': nn may import nn/functional, autograd, functions, generated, op, tensor, addon, base
      packages/torch/src/tensor/tensor.ts: imports '../index.ts': no folder imports the entries of src
      packages/torch/native/core/core.h: includes "tensor/tensor.h": core may include no folder"
    `);
  });

  test('finds folders that import each other, also through others', () => {
    const row = (...imports: string[]) => ({ imports });
    expect(findFolderCycles({ a: row('b'), b: row('c'), c: row('a'), d: row('a') })).toEqual(['a -> b -> c -> a']);
    expect(findFolderCycles({ a: row('b', 'c'), b: row('c'), c: row() })).toEqual([]);
  });

  test('a folder with more than 20 source files is named', () => {
    for (let i = 0; i < MOST_FILES; i++) {
      plant(`torch/src/full/f${i}.ts`, '');
      plant(`torch/src/full/f${i}.test.ts`, '');
      plant(`torch/native/core/f${i}.cc`, '');
      plant(`torch/native/core/f${i}.h`, '');
      plant(`torch/src/crowded/below/f${i}.ts`, '');
      plant(`torch/node_modules/other/f${i}.mjs`, '');
    }
    expect(findCrowdedFolders(root)).toEqual([]);
    plant('torch/src/crowded/below/one-more.ts', '');
    plant('torch/native/core/one-more.h', '');
    plant('torch/node_modules/other/one-more.mjs', '');
    expect(findCrowdedFolders(root).sort()).toEqual([
      'packages/torch/native/core: holds 21 source files; at most 20 fit, so split it by subject into folders',
      'packages/torch/src/crowded/below: holds 21 source files; at most 20 fit, so split it by subject into folders',
    ]);
  });

  test('CONTRIBUTING shows the tables', () => {
    const page = readFileSync(new URL('../CONTRIBUTING.md', import.meta.url), 'utf8');
    expect(withFolders(page)).toBe(page);
  });

  test('this workspace keeps to the table', () => {
    const workspace = fileURLToPath(new URL('..', import.meta.url));
    expect(findViolations(workspace)).toEqual([]);
    expect(findCrowdedFolders(workspace)).toEqual([]);
  });
});
