/** @file What the packages export: a name means the same thing in all of them, so that no import needs a second look, and is documented. */
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

const packages = ['schedule', 'torch', 'pipewright'];
const files = packages.map((name) => fileURLToPath(new URL(`../../packages/${name}/dist/index.d.ts`, import.meta.url)));
const program = ts.createProgram(files, {
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  skipLibCheck: true,
});
const checker = program.getTypeChecker();

/** What an exported name stands for in the end. */
function meaningOf(symbol: ts.Symbol): ts.Symbol {
  return (symbol.flags & ts.SymbolFlags.Alias) === 0 ? symbol : checker.getAliasedSymbol(symbol);
}

test('no name of the public API has two meanings', () => {
  const meanings = new Map<string, Set<ts.Symbol>>();
  for (const file of files) {
    const module = checker.getSymbolAtLocation(program.getSourceFile(file)!)!;
    const names = checker.getExportsOfModule(module);
    expect(names.length).toBeGreaterThan(100);
    for (const symbol of names) {
      const known = meanings.get(symbol.name) ?? new Set();
      meanings.set(symbol.name, known.add(meaningOf(symbol)));
    }
  }
  expect([...meanings].flatMap(([name, known]) => (known.size > 1 ? [name] : []))).toEqual([]);
  // What only our own packages need is under ./internal.
  for (const name of ['prepareCall', 'releaseHandle', 'withRecorder', 'CompositeTable'])
    expect(meanings.has(name)).toBe(false);
});

test('every name of the public API has a doc comment', () => {
  const undocumented = new Set<string>();
  const seen = new Set<ts.Symbol>();
  let count = 0;
  const visit = (module: ts.Symbol, path: string): void => {
    if (seen.has(module)) return;
    seen.add(module);
    for (const symbol of checker.getExportsOfModule(module)) {
      const meaning = meaningOf(symbol);
      const declared = meaning.declarations?.[0]?.getSourceFile().fileName ?? '';
      if (!declared.includes('/packages/') || declared.includes('/generated/')) continue;
      // `export * as nn`: what it holds counts, one by one.
      if ((meaning.flags & ts.SymbolFlags.ValueModule) !== 0) visit(meaning, `${path}${symbol.name}.`);
      else {
        count++;
        if (meaning.getDocumentationComment(checker).length === 0) undocumented.add(`${path}${symbol.name}`);
      }
    }
  };
  for (const [i, file] of files.entries())
    visit(checker.getSymbolAtLocation(program.getSourceFile(file)!)!, `${packages[i]}: `);
  expect(count).toBeGreaterThan(900);
  expect([...undocumented]).toEqual([]);
});
