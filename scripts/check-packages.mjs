// @ts-check
/** @file Looks at the packages as they would be published: what publint says, and the fields that npm shows. Part of `npm run check`. */
import { readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { publint } from 'publint';
import { formatMessage } from 'publint/utils';
import { root } from './bootstrap.mjs';
import { packageDirs } from './pack.mjs';

const FIELDS = ['description', 'keywords', 'license', 'repository', 'engines', 'files', 'exports'];

let problems = 0;
for (const dir of packageDirs()) {
  const manifest = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
  const { messages } = await publint({ pkgDir: dir, strict: true, pack: 'npm' });
  const lines = [
    ...messages.map((message) => formatMessage(message, manifest) ?? message.code),
    ...FIELDS.filter((field) => manifest[field] === undefined).map((field) => `package.json has no ${field}`),
  ];
  for (const line of lines) console.error(`${relative(root, dir)}: ${line}`);
  problems += lines.length;
}
console.log(problems === 0 ? 'packages: fit to be published' : `packages: ${problems} problems`);
process.exitCode = problems === 0 ? 0 : 1;
