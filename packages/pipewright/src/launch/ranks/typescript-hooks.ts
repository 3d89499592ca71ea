/**
 * @file Hooks for `module.register`: TypeScript files lose their types on the way in. The result is kept in the user's
 * cache folder, so that of many ranks and many runs only the first one pays for the compiler.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type * as TypeScript from 'typescript';

interface Loaded {
  readonly format: 'module' | 'commonjs';
  readonly source: string;
  readonly shortCircuit: true;
}

type NextLoad = (url: string, context: object) => Promise<unknown>;

const MOST_FILES = 1000;
const FORM = 1;

/** Node calls it for every module: ours are the TypeScript files outside of node_modules. */
export async function load(url: string, context: object, nextLoad: NextLoad): Promise<unknown> {
  if (!/^file:.*\.m?ts$/.test(url) || url.includes('/node_modules/')) return nextLoad(url, context);
  const file = fileURLToPath(url);
  const loaded: Loaded = { format: formatOf(file), source: withoutTypes(file), shortCircuit: true };
  return loaded;
}

function withoutTypes(file: string): string {
  const source = readFileSync(file, 'utf8');
  const format = formatOf(file);
  const key = createHash('sha256').update(`${FORM}\0${format}\0${file}\0${source}`).digest('hex');
  const folder = join(process.env['PIPEWRIGHT_CACHE'] || join(userCache(), 'pipewright'), 'typescript');
  const kept = join(folder, `${key}.js`);
  try {
    return readFileSync(kept, 'utf8');
  } catch {
    const result = transpile(file, source, format);
    keep(folder, kept, result);
    return result;
  }
}

function transpile(file: string, source: string, format: 'module' | 'commonjs'): string {
  const ts = findCompiler(file);
  const { outputText, diagnostics = [] } = ts.transpileModule(source, {
    fileName: file,
    reportDiagnostics: true,
    compilerOptions: {
      target: ts.ScriptTarget.ES2022,
      module: format === 'module' ? ts.ModuleKind.ESNext : ts.ModuleKind.CommonJS,
      verbatimModuleSyntax: format === 'module',
      inlineSourceMap: true,
      inlineSources: true,
    },
  });
  const [first] = diagnostics;
  if (first === undefined) return outputText;
  const { line } = first.file?.getLineAndCharacterOfPosition(first.start ?? 0) ?? { line: 0 };
  throw new SyntaxError(`${file}:${line + 1}: ${ts.flattenDiagnosticMessageText(first.messageText, '\n')}`);
}

/** The compiler that the script's own project has, or ours. */
function findCompiler(file: string): typeof TypeScript {
  for (const from of [file, import.meta.url]) {
    try {
      const compiler = createRequire(from)('typescript') as Partial<typeof TypeScript>;
      if (typeof compiler.transpileModule === 'function') return compiler as typeof TypeScript;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  throw new Error(
    `${file} is TypeScript, which Node ${process.versions.node} cannot run by itself; use Node 22.18 or later, or: npm install --save-dev typescript@6`,
  );
}

/** As Node has it: by the ending, else by the nearest package.json; modules where that says nothing. */
function formatOf(file: string): 'module' | 'commonjs' {
  if (file.endsWith('.mts')) return 'module';
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    try {
      const { type } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { readonly type?: unknown };
      return type === 'commonjs' ? 'commonjs' : 'module';
    } catch {
      if (dirname(folder) === folder) return 'module';
    }
  }
}

/** Keeps a result for later; where that is not possible, it is simply made again. */
function keep(folder: string, file: string, text: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    if (readdirSync(folder).length > MOST_FILES) rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    writeFileSync(`${file}.${process.pid}`, text);
    renameSync(`${file}.${process.pid}`, file);
  } catch {
    return;
  }
}

function userCache(): string {
  return process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache');
}
