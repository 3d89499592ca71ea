/** @file The page as one HTML file, with what it is opened with inside. */
import { readFileSync } from 'node:fs';

/** A file that the page is opened with. */
export interface StudioFile {
  readonly name: string;
  readonly text: string;
}

/** What the page is opened with. */
export interface PageData {
  readonly files: readonly StudioFile[];
  /** Where the page hears of a running job; null without one. */
  readonly events: string | null;
  /** What a job has told, where the page shows it without a server. */
  readonly lines?: readonly string[];
}

const place = '<script type="application/json" id="data">{}</script>';

/** The page with its data. Text of files cannot end the element it stands in, nor begin another. */
export function pageWith(data: PageData): string {
  const html = readFileSync(new URL('../page/studio.html', base()), 'utf8');
  const json = JSON.stringify(data)
    .replaceAll('<', '\\u003c')
    .replaceAll('\u2028', '\\u2028')
    .replaceAll('\u2029', '\\u2029');
  return html.replace(place, () => place.replace('{}', () => json));
}

/** The policy of the page, for the header. */
export function pagePolicy(): string {
  return readFileSync(new URL('../page/policy.txt', base()), 'utf8');
}

/** The bundled page lies beside the compiled server. */
function base(): string {
  return import.meta.url.replace(/\/src\/server\/[^/]*$/, '/dist/server/page-file.js');
}
