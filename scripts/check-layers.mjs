// @ts-check
/**
 * @file Checks that every source file keeps to the tables of layers.mjs, packages and folders, that no folder is crowded, and
 * that CONTRIBUTING.md shows the tables. Run: `npm run layers`; with `--write` it writes the table into CONTRIBUTING.md.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, extname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundled as bundledFolders, folders, known, packages as mayImport, pure } from './layers.mjs';

/**
 * One import of a file. Lazy: through `import()`, or of types only.
 * @typedef {{ specifier: string, lazy: boolean }} Import
 * @param {string} text
 * @returns {Import[]}
 */
export function findImports(text) {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
  const imports = [];
  const statement = /^\s*(?:import|export)\b(\s+type\b)?(?:[^'"`;]*?\bfrom)?\s*['"]([^'"]+)['"]/gm;
  for (const match of code.matchAll(statement))
    imports.push({ specifier: match[2] ?? '', lazy: match[1] !== undefined });
  for (const match of code.matchAll(/\bimport\(\s*['"]([^'"]+)['"]\s*\)/g))
    imports.push({ specifier: match[1] ?? '', lazy: true });
  return imports;
}

/**
 * What breaks the table, one line each, in the workspace at `root`.
 * @param {string} root
 * @returns {string[]}
 */
export function findViolations(root) {
  const packages = join(root, 'packages');
  return readdirSync(packages).flatMap((name) => {
    const dir = join(packages, name);
    if (!existsSync(join(dir, 'package.json'))) return [];
    if (!(name in mayImport)) return [`packages/${name}: not in the table of scripts/layers.mjs; add it there`];
    const manifest = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
    const { dependencies = {}, peerDependencies = {}, devDependencies = {} } = manifest;
    const shipped = [...Object.keys(dependencies), ...Object.keys(peerDependencies)];
    const files = sourceFiles(join(dir, 'src'));
    const outside = files.flatMap((file) => {
      const where = relative(root, file).replaceAll(sep, '/');
      const bundled = bundledFolders.some((folder) => where.startsWith(folder)) ? Object.keys(devDependencies) : [];
      const declared = new Set([...shipped, ...bundled]);
      const context = { name: /** @type {keyof typeof mayImport} */ (name), dir, file, declared };
      return findImports(readFileSync(file, 'utf8')).flatMap((entry) => {
        const problem = judge(entry, context);
        return problem === null ? [] : [`${where}: imports '${entry.specifier}': ${problem}`];
      });
    });
    return [...outside, ...findFolderViolations(name, join(dir, 'src'), files), ...findNativeViolations(name, dir)];
  });
}

/**
 * What breaks the table of folders in one package: imports of types count, tests do not.
 * @param {string} name
 * @param {string} src
 * @param {string[]} files
 * @returns {string[]}
 */
function findFolderViolations(name, src, files) {
  const rows = folders[name] ?? {};
  const unused = new Set((known[name] ?? []).map(([from, to]) => `${from} -> ${to}`));
  const problems = [];
  for (const file of files.filter((path) => !/\.test\.tsx?$/.test(path) && dirname(path) !== src)) {
    const where = `packages/${name}/src/${relative(src, file).replaceAll(sep, '/')}`;
    const from = rowOf(rows, relative(src, file));
    if (from === undefined) {
      problems.push(`${where}: its folder is not in the table of scripts/layers.mjs; add it there`);
      continue;
    }
    // An index re-exports what is below its folder.
    const isIndex = /(^|[\\/])index\.tsx?$/.test(file);
    for (const { specifier } of findImports(readFileSync(file, 'utf8'))) {
      if (!specifier.startsWith('.')) continue;
      const target = resolve(dirname(file), specifier);
      const to = rowOf(rows, relative(src, target));
      if (to === from || (isIndex && !relative(dirname(file), target).startsWith('..'))) continue;
      if (to !== undefined && /** @type {{ imports: string[] }} */ (rows[from]).imports.includes(to)) continue;
      const edge = `${from} -> ${to}`;
      if ((known[name] ?? []).some((pair) => pair.join(' -> ') === edge)) unused.delete(edge);
      else if (to === undefined)
        problems.push(`${where}: imports '${specifier}': no folder imports the entries of src`);
      else
        problems.push(
          `${where}: imports '${specifier}': ${from} may import ${rows[from]?.imports.join(', ') || 'no folder'}`,
        );
    }
  }
  for (const edge of unused)
    problems.push(`packages/${name}: ${edge} is listed as known in scripts/layers.mjs and gone; remove it there`);
  return problems;
}

/**
 * What breaks the table of C++ folders in one package.
 * @param {string} name
 * @param {string} dir
 * @returns {string[]}
 */
function findNativeViolations(name, dir) {
  const rows = folders[`${name}/native`];
  const native = join(dir, 'native');
  if (rows === undefined || !existsSync(native)) return [];
  return readdirSync(native, { withFileTypes: true, recursive: true }).flatMap((entry) => {
    if (!/\.(cc|h)$/.test(entry.name)) return [];
    const file = join(entry.parentPath, entry.name);
    const where = `packages/${name}/native/${relative(native, file).replaceAll(sep, '/')}`;
    const from = rowOf(rows, relative(native, file));
    if (from === undefined) return [`${where}: its folder is not in the table of scripts/layers.mjs; add it there`];
    return [...readFileSync(file, 'utf8').matchAll(/^\s*#include "([^"]+)"/gm)].flatMap(([, path = '']) => {
      const found = [join(native, path), join(dirname(file), path)].find((candidate) => existsSync(candidate));
      const to = found === undefined ? undefined : rowOf(rows, relative(native, found));
      if (to === undefined || to === from || rows[from]?.imports.includes(to)) return [];
      return [`${where}: includes "${path}": ${from} may include ${rows[from]?.imports.join(', ') || 'no folder'}`];
    });
  });
}

/** More source files than this in one folder hide what belongs together: it is split by subject. */
export const MOST_FILES = 20;
/** The folders at the root that hold source files. */
const SOURCES = ['packages', 'scripts', 'tests', 'tools', 'examples', 'bench'];
const NOT_OURS = new Set(['node_modules', 'dist', 'generated']);

/**
 * Folders with more source files than fit. Tests do not count; a C++ file and its header count once.
 * @param {string} root
 * @returns {string[]}
 */
export function findCrowdedFolders(root) {
  /** @param {string} dir @returns {string[]} */
  const visit = (dir) => {
    const entries = readdirSync(dir, { withFileTypes: true });
    const sources = entries.filter(
      ({ name }) => /\.(tsx?|mjs|py|cc|h)$/.test(name) && !/\.(test\.tsx?|d\.m?ts)$/.test(name),
    );
    const count = new Set(sources.map(({ name }) => name.slice(0, -extname(name).length))).size;
    const where = relative(root, dir).replaceAll(sep, '/');
    const below = entries.filter((entry) => entry.isDirectory() && !NOT_OURS.has(entry.name));
    return [
      ...(count > MOST_FILES
        ? [`${where}: holds ${count} source files; at most ${MOST_FILES} fit, so split it by subject into folders`]
        : []),
      ...below.flatMap(({ name }) => visit(join(dir, name))),
    ];
  };
  return SOURCES.flatMap((name) => (existsSync(join(root, name)) ? visit(join(root, name)) : []));
}

/**
 * The row of the table that a path below `src` belongs to: the deepest one.
 * @param {Record<string, unknown>} rows
 * @param {string} path
 */
function rowOf(rows, path) {
  const parts = dirname(path.replaceAll(sep, '/')).split('/');
  for (let depth = parts.length; depth > 0; depth--) {
    const row = parts.slice(0, depth).join('/');
    if (Object.hasOwn(rows, row)) return row;
  }
  return undefined;
}

/**
 * Folders that import each other, directly or through others, by a table: one line for each cycle's beginning.
 * @param {Record<string, { imports: readonly string[] }>} rows
 * @returns {string[]}
 */
export function findFolderCycles(rows) {
  /** @type {Set<string>} */
  const done = new Set();
  /** @type {string[]} */
  const cycles = [];
  /** @param {string} row @param {string[]} path */
  const visit = (row, path) => {
    if (path.includes(row)) cycles.push([...path.slice(path.indexOf(row)), row].join(' -> '));
    if (path.includes(row) || done.has(row)) return;
    for (const next of rows[row]?.imports ?? []) visit(next, [...path, row]);
    done.add(row);
  };
  for (const row of Object.keys(rows)) visit(row, []);
  return cycles;
}

const BEGIN = '<!-- layers: written by `npm run layers -- --write` -->';
const END = '<!-- layers end -->';

/** The tables of folders as Markdown. */
export function renderFolders() {
  return Object.entries(folders)
    .map(([name, rows]) => {
      const lines = Object.entries(rows).map(
        ([row, { holds, imports }]) => `| \`${row}/\` | ${holds} | ${imports.join(', ') || 'nothing'} |`,
      );
      return [
        `packages/${name.endsWith('/native') ? name : `${name}/src`}`,
        '',
        '| folder | holds | imports |',
        '| --- | --- | --- |',
        ...lines,
      ].join('\n');
    })
    .join('\n\n');
}

/** CONTRIBUTING.md with the tables as they are. @param {string} text */
export function withFolders(text) {
  const [start, end] = [text.indexOf(BEGIN), text.indexOf(END)];
  if (start < 0 || end < start)
    throw new Error(`check-layers: CONTRIBUTING.md has no place for the tables: ${BEGIN} … ${END}`);
  return `${text.slice(0, start)}${BEGIN}\n\n${renderFolders()}\n\n${text.slice(end)}`;
}

/**
 * @param {Import} entry
 * @param {{ name: keyof typeof mayImport, dir: string, file: string, declared: Set<string> }} context
 * @returns {string | null} what is wrong with it
 */
function judge({ specifier, lazy }, { name, dir, file, declared }) {
  if (specifier.startsWith('.')) {
    const inside = !relative(dir, resolve(dirname(file), specifier)).startsWith('..');
    return inside ? null : `leaves packages/${name}; import the other package by its name`;
  }
  const isTest = /\.test\.tsx?$/.test(file);
  const packageName = specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
  const ours = packageName === 'pipewright' ? 'pipewright' : /^@pipewright\/(.+)$/.exec(packageName)?.[1];
  if (ours !== undefined) {
    /** @type {{ atOnce: readonly string[], lazily: readonly string[] }} */
    const { atOnce, lazily } = mayImport[name];
    if (ours === name || atOnce.includes(ours)) return null;
    if (lazily.includes(ours)) return lazy || isTest ? null : `${name} may import ${ours} only lazily, with import()`;
    const allowed = [...atOnce, ...lazily.map((other) => `${other} (lazily)`)].join(', ') || 'none of our packages';
    return `${name} may import ${allowed}`;
  }
  if (isTest) return null;
  if (specifier.startsWith('node:') || builtinModules.includes(packageName))
    return pure.includes(name) ? `${name} also runs in a browser; keep Node out of it` : null;
  return declared.has(packageName)
    ? null
    : `${packageName} is not among the dependencies of packages/${name}/package.json`;
}

/** @param {string} dir @returns {string[]} */
function sourceFiles(dir) {
  if (!existsSync(dir)) return [];
  return readdirSync(dir, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const root = fileURLToPath(new URL('..', import.meta.url));
  const page = join(root, 'CONTRIBUTING.md');
  const text = readFileSync(page, 'utf8');
  if (process.argv.includes('--write')) writeFileSync(page, withFolders(text));
  const violations = [...findViolations(root), ...findCrowdedFolders(root)];
  for (const [name, rows] of Object.entries(folders))
    for (const cycle of findFolderCycles(rows))
      violations.push(`scripts/layers.mjs: ${name}: ${cycle}: folders must not import each other`);
  if (withFolders(readFileSync(page, 'utf8')) !== readFileSync(page, 'utf8'))
    violations.push('CONTRIBUTING.md: shows other tables than scripts/layers.mjs; run: npm run layers -- --write');
  for (const line of violations) console.error(line);
  console.log(
    violations.length === 0 ? 'layers: every import keeps to the tables' : `layers: ${violations.length} broken`,
  );
  process.exitCode = violations.length === 0 ? 0 : 1;
}
