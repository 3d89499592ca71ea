/** @file Where the compiled form of a module is: threads and processes of Node 20 can run nothing else. */

/** The URL of the module `name` beside the module `from`, compiled. */
export function compiledUrl(name: string, from: string): URL {
  if (from.endsWith('.js')) return new URL(`./${name}.js`, from);
  return new URL(`${from.replace(/\/src\/(?=(?:[^/]+\/)*[^/]*$)/, '/dist/').replace(/[^/]*$/, '')}${name}.js`);
}
