// @ts-check
/**
 * @file Completes package-lock.json: `npm ci` refuses a lock file that does not name every optional package, those of
 * other platforms too, and `npm install` leaves out what its registry does not have at that moment. Run it after
 * `npm install`; with --check it only says whether anything is left out, or has no hash and is none of the packages that may
 * lack one (docs/internals/dependencies.md).
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const path = fileURLToPath(new URL('../package-lock.json', import.meta.url));

/** Tools for building and testing that have a package per platform. */
const perPlatform = ['@biomejs/cli-', '@oxlint/binding-', '@oxlint-tsgolint/', '@rolldown/binding-'];

/**
 * What npm would write for a package of another platform, as far as its name tells: `binding-linux-arm64-musl`.
 * @param {string} name
 * @param {string} version
 * @param {boolean} dev
 */
function entryFor(name, version, dev) {
  const match = /(android|darwin|freebsd|linux|openharmony|win32|wasm32)-([a-z0-9]+)(?:-(.+))?$/.exec(name);
  if (match === null) return null;
  const [, system = '', machine = '', rest = ''] = match;
  const libc = rest.startsWith('gnu') ? ['glibc'] : rest.startsWith('musl') ? ['musl'] : undefined;
  return {
    version,
    cpu: [system === 'wasm32' ? 'wasm32' : machine],
    ...(dev ? { dev } : {}),
    ...(system === 'linux' && libc ? { libc } : {}),
    optional: true,
    ...(system === 'wasm32' ? {} : { os: [system] }),
  };
}

/**
 * Keys of entries that have no hash though they are no optional packages of a platform; those of the workspace need none.
 * @param {{ packages: Record<string, { integrity?: string, link?: boolean, optional?: boolean, cpu?: string[] }> }} lock
 */
export function withoutIntegrity({ packages }) {
  return Object.entries(packages)
    .filter(([key, entry]) => {
      const name = key.split('node_modules/').at(-1) ?? '';
      if (entry.integrity || entry.link || !key.includes('node_modules/')) return false;
      return !(entry.optional && entry.cpu && perPlatform.some((prefix) => name.startsWith(prefix)));
    })
    .map(([key]) => key);
}

function main() {
  const lock = JSON.parse(readFileSync(path, 'utf8'));
  const missing = [];
  for (const entry of Object.values(lock.packages)) {
    for (const [name, version] of Object.entries(entry.optionalDependencies ?? {})) {
      const key = `node_modules/${name}`;
      if (key in lock.packages) continue;
      const added = entryFor(name, String(version), entry.dev === true || entry.devOptional === true);
      if (added === null) throw new Error(`package-lock.json has no ${name}, and its name does not tell its platform`);
      missing.push(name);
      lock.packages[key] = added;
    }
  }

  if (process.argv.includes('--check')) {
    if (missing.length > 0)
      console.error(`package-lock.json lacks ${missing.join(', ')}; run: node ${process.argv[1]}`);
    const bare = withoutIntegrity(lock);
    if (bare.length > 0) console.error(`package-lock.json has no integrity for ${bare.join(', ')}; run: npm install`);
    process.exitCode = missing.length + bare.length === 0 ? 0 : 1;
  } else if (missing.length > 0) {
    const { '': root, ...rest } = lock.packages;
    const sorted = Object.fromEntries(Object.entries(rest).sort(([a], [b]) => a.localeCompare(b, 'en')));
    writeFileSync(path, `${JSON.stringify({ ...lock, packages: { '': root, ...sorted } }, null, 2)}\n`);
    console.log(`package-lock.json: ${missing.length} packages of other platforms added`);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
