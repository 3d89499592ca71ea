/** @file The pages of the documentation and the code blocks in them. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** The repository. */
export const root: string = fileURLToPath(new URL('../../', import.meta.url));

/** A piece of code in a page. */
export interface Block {
  readonly page: string;
  /** Counted from 1 in its page. */
  readonly number: number;
  readonly line: number;
  readonly language: string;
  readonly code: string;
  /** The file that the program is, from a first line such as `// train.ts`. */
  readonly file: string | undefined;
  /** What the page says it prints: a `text` block right after it. */
  readonly prints: string | undefined;
}

/** The pages, as paths from the root: all in docs/, those of the root, and those of the packages. */
export const pages: readonly string[] = [
  ...['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'examples/README.md', 'bench/RESULTS.md'],
  ...readdirSync(`${root}packages`).map((name) => `packages/${name}/README.md`),
  ...readdirSync(`${root}docs`, { recursive: true, encoding: 'utf8' })
    .map((path) => `docs/${path.replaceAll('\\', '/')}`)
    .filter((path) => path.endsWith('.md') && !path.startsWith('docs/reference/api/'))
    .sort(),
];

/** The text of a page. */
export function textOf(page: string): string {
  return readFileSync(`${root}${page}`, 'utf8');
}

/** The code blocks of a page. */
export function blocksOf(page: string): Block[] {
  const text = textOf(page);
  const found = [...text.matchAll(/^```(\w*)\n([^]*?)^```$/gm)];
  return found.map((match, i) => {
    const [whole, language = '', code = ''] = match;
    const next = found[i + 1];
    const between = next === undefined ? 'none' : text.slice(match.index + whole.length, next.index).trim();
    return {
      page,
      number: i + 1,
      line: text.slice(0, match.index).split('\n').length,
      language,
      code,
      file: /^\/\/ ([\w-]+\.ts)$/m.exec(code.split('\n')[0] ?? '')?.[1],
      prints: between === '' && next?.[1] === 'text' ? next[2] : undefined,
    };
  });
}

/** All blocks of a language. */
export function blocksIn(language: string): Block[] {
  return pages.flatMap(blocksOf).filter((block) => block.language === language);
}
