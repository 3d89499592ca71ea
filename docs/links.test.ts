/** @file Links between pages lead somewhere, and the index knows every page. */
import { existsSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { describe, expect, test } from 'vitest';
import { pages, root, textOf } from './testing/pages.ts';

/** Headings as the fragments of links, as GitHub makes them. */
function fragmentsOf(page: string): string[] {
  const plain = textOf(page).replace(/^```[^]*?^```$/gm, '');
  return [...plain.matchAll(/^#+ (.+)$/gm)].map((match) =>
    (match[1] as string)
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );
}

describe.each(pages)('%s', (page) => {
  const links = [...textOf(page).matchAll(/\]\((?!https?:)([^)\s]*)\)/g)].map((match) => match[1] as string);

  test('its links lead somewhere', () => {
    for (const link of links) {
      const [path = '', fragment] = link.split('#');
      const target = path === '' ? page : relative(root, join(root, dirname(page), path));
      expect(existsSync(join(root, target)), `${page} links to ${link}`).toBe(true);
      if (fragment !== undefined) expect(fragmentsOf(target), `${page} links to ${link}`).toContain(fragment);
    }
  });
});

test('the index links to every page', () => {
  const linked = [...textOf('docs/README.md').matchAll(/\]\(([^)#]*)\)/g)].map((match) =>
    join('docs', match[1] as string),
  );
  for (const page of pages.filter((path) => path.startsWith('docs/') && path !== 'docs/README.md'))
    expect(linked).toContain(page);
});
