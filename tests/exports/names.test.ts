/** @file A name that two packages export means the same thing in both, so that no import needs a second look. */
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

const packages = ['schedule', 'torch', 'pipewright'];

test('no name of the public API has two meanings', () => {
  const files = packages.map((name) =>
    fileURLToPath(new URL(`../../packages/${name}/dist/index.d.ts`, import.meta.url)),
  );
  const program = ts.createProgram(files, {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    skipLibCheck: true,
  });
  const checker = program.getTypeChecker();
  const meanings = new Map<string, Set<ts.Symbol>>();
  for (const file of files) {
    const module = checker.getSymbolAtLocation(program.getSourceFile(file) as ts.SourceFile) as ts.Symbol;
    const names = checker.getExportsOfModule(module);
    expect(names.length).toBeGreaterThan(100);
    for (const symbol of names) {
      const isAlias = (symbol.flags & ts.SymbolFlags.Alias) !== 0;
      const known = meanings.get(symbol.name) ?? new Set();
      meanings.set(symbol.name, known.add(isAlias ? checker.getAliasedSymbol(symbol) : symbol));
    }
  }
  expect([...meanings].flatMap(([name, known]) => (known.size > 1 ? [name] : []))).toEqual([]);
  // What only our own packages need is under ./internal.
  for (const name of ['prepareCall', 'releaseHandle', 'withRecorder', 'CompositeTable'])
    expect(meanings.has(name)).toBe(false);
});
