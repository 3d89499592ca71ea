// @ts-check
/**
 * @file Exports that nobody uses: functions, classes and constants that no other file names and no package shows. Part of `npm run check`.
 * Names are looked for as words, so a name that two files share hides the unused one.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const SKIPPED = new Set(['node_modules', 'dist', 'generated', 'prebuilt', 'testdata', 'native']);
const FOLDERS = ['packages', 'scripts', 'tests', 'examples', 'bench', 'tools', 'docs'];

/**
 * The unused exports of the workspace at `root`, as `file: name`.
 * @param {string} root
 * @returns {string[]}
 */
export function findUnusedExports(root) {
  const files = FOLDERS.flatMap((folder) => walk(join(root, folder)));
  const texts = new Map(files.map((file) => [file, readFileSync(file, 'utf8')]));
  /** @type {Map<string, Set<string>>} the files that name a word */
  const users = new Map();
  for (const [file, text] of texts)
    for (const word of new Set(text.match(/[A-Za-z_$][\w$]*/g) ?? [])) {
      const set = users.get(word) ?? new Set();
      users.set(word, set.add(file));
    }
  const shown = publicFiles(root, texts);
  const unused = [];
  for (const [file, text] of texts) {
    if (!/\/packages\/[^/]+\/src\//.test(file) || /\.test\.tsx?$/.test(file) || shown.has(file)) continue;
    const declared = /^export (?:async )?(?:function\*?|class|abstract class|const|let) ([\w$]+)/gm;
    for (const match of text.matchAll(declared)) {
      const name = match[1] ?? '';
      if ((users.get(name)?.size ?? 0) <= 1) unused.push(`${relative(root, file)}: ${name}`);
    }
  }
  return unused.sort();
}

/**
 * The files that a package shows whole: its entries, and what they export with a star.
 * @param {string} root
 * @param {Map<string, string>} texts
 */
function publicFiles(root, texts) {
  /** @type {Set<string>} */
  const shown = new Set();
  /** @param {string} file */
  const visit = (file) => {
    if (shown.has(file)) return;
    shown.add(file);
    for (const match of (texts.get(file) ?? '').matchAll(/export (?:type )?\*(?: as \w+)? from '(\.[^']+)'/g))
      visit(resolve(dirname(file), match[1] ?? ''));
  };
  for (const name of readdirSync(join(root, 'packages'))) {
    const manifest = join(root, 'packages', name, 'package.json');
    if (!existsSync(manifest)) continue;
    /** @type {Record<string, { '@pipewright/source'?: string }>} */
    const entries = JSON.parse(readFileSync(manifest, 'utf8')).exports ?? {};
    for (const entry of Object.values(entries)) {
      const source = entry['@pipewright/source'];
      if (source !== undefined) visit(join(root, 'packages', name, source));
    }
  }
  return shown;
}

/** @param {string} dir @returns {string[]} */
function walk(dir) {
  if (!existsSync(dir)) return [];
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    const path = join(dir, entry.name);
    if (entry.isDirectory()) return SKIPPED.has(entry.name) ? [] : walk(path);
    return /\.(tsx?|mjs)$/.test(entry.name) ? [path] : [];
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const unused = findUnusedExports(fileURLToPath(new URL('..', import.meta.url)));
  for (const line of unused) console.error(`${line} is exported and used nowhere else`);
  console.log(unused.length === 0 ? 'exports: all are used' : `exports: ${unused.length} unused`);
  process.exitCode = unused.length === 0 ? 0 : 1;
}
