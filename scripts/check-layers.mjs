// @ts-check
/** @file Who may import whom: the table, and the check that every source file keeps to it. Run: `npm run layers`. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Packages of ours that a package may import; `lazily` only through `import()` or as types. */
export const mayImport = {
  schedule: { atOnce: [], lazily: [] },
  torch: { atOnce: [], lazily: [] },
  pipewright: { atOnce: ['schedule', 'torch'], lazily: [] },
  studio: { atOnce: ['schedule'], lazily: [] },
  cli: { atOnce: ['schedule'], lazily: ['torch', 'pipewright', 'studio'] },
};

/** Folders that are bundled when the package is built: what they import travels inside the bundle. */
const BUNDLED = ['packages/studio/src/page/'];

/** Packages that also run in a browser: nothing of Node in them. */
const PURE = ['schedule'];

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
    if (!(name in mayImport)) return [`packages/${name}: not in the table of scripts/check-layers.mjs; add it there`];
    const manifest = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
    const { dependencies = {}, peerDependencies = {}, devDependencies = {} } = manifest;
    const shipped = [...Object.keys(dependencies), ...Object.keys(peerDependencies)];
    return sourceFiles(join(dir, 'src')).flatMap((file) => {
      const where = relative(root, file).replaceAll(sep, '/');
      const bundled = BUNDLED.some((folder) => where.startsWith(folder)) ? Object.keys(devDependencies) : [];
      const declared = new Set([...shipped, ...bundled]);
      const context = { name: /** @type {keyof typeof mayImport} */ (name), dir, file, declared };
      return findImports(readFileSync(file, 'utf8')).flatMap((entry) => {
        const problem = judge(entry, context);
        return problem === null ? [] : [`${where}: imports '${entry.specifier}': ${problem}`];
      });
    });
  });
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
    return PURE.includes(name) ? `${name} also runs in a browser; keep Node out of it` : null;
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
  const violations = findViolations(fileURLToPath(new URL('..', import.meta.url)));
  for (const line of violations) console.error(line);
  console.log(
    violations.length === 0 ? 'layers: every import keeps to the table' : `layers: ${violations.length} broken`,
  );
  process.exitCode = violations.length === 0 ? 0 : 1;
}
