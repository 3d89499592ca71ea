/** @file The tests of all packages: one project per package, each file in a process of its own (the addon wants that). */
import { existsSync, readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

const root = fileURLToPath(new URL('.', import.meta.url));
/** Tests run our TypeScript sources, not what was compiled from them. */
const conditions = ['@pipewright/source', 'module', 'node', 'import', 'default'];

const projects = readdirSync(`${root}packages`)
  .filter((name) => existsSync(`${root}packages/${name}/package.json`))
  .map((name) => ({ name, dir: `packages/${name}` }));

export default defineConfig({
  test: {
    globalSetup: [`${root}scripts/vitest-setup.mjs`],
    maxWorkers: 2,
    projects: [...projects, ...['scripts', 'docs', 'tests'].map((name) => ({ name, dir: name }))].map(
      ({ name, dir }) => ({
        resolve: { conditions },
        ssr: { resolve: { conditions, externalConditions: conditions } },
        test: {
          name,
          root: `${root}${dir}`,
          include: ['**/*.test.ts', '**/*.test.tsx'],
          exclude: ['**/node_modules/**', '**/dist/**'],
          pool: 'forks' as const,
          setupFiles: [`${root}scripts/vitest-seed.mjs`],
          // Others may use the machine too: a condition that is polled for has this long to come true.
          expect: { poll: { timeout: 30_000 } },
          testTimeout: 600_000,
          hookTimeout: 600_000,
        },
      }),
    ),
  },
});
