/** @file Small tools for writing SVG: numbers, escaping, axis ticks, the two themes. */

/** Collects markup. */
export class Markup {
  private readonly chunks: string[] = [];

  /** Adds a piece as it is. */
  add(piece: string): this {
    this.chunks.push(piece);
    return this;
  }

  /** Adds a line of text at a place. */
  text(x: number, y: number, content: string, attributes = ''): this {
    return this.add(
      `<text x="${num(x)}" y="${num(y)}"${attributes === '' ? '' : ` ${attributes}`}>${escapeXml(content)}</text>`,
    );
  }

  toString(): string {
    return this.chunks.join('\n');
  }
}

/** A coordinate with at most two decimals. */
export function num(value: number): string {
  return String(Math.round(value * 100) / 100);
}

/** Text that may stand in XML. */
export function escapeXml(text: string): string {
  return text.replace(/[&<>"]/g, (char) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[char]!);
}

/** Estimated width of a text in a sans-serif font. */
export function textWidth(text: string, fontPx: number): number {
  return text.length * fontPx * 0.57;
}

const lightColors =
  '--pw-paper:#ffffff;--pw-ink:#1c2733;--pw-soft:#5b6875;--pw-line:#d9e0e7;--pw-lane:#f2f5f8;--pw-hatch:#c3ccd5;--pw-arrow:#3d4a57';
const darkColors =
  '--pw-paper:#10171f;--pw-ink:#e8eef4;--pw-soft:#9aa8b5;--pw-line:#2c3742;--pw-lane:#18212b;--pw-hatch:#3a4754;--pw-arrow:#c5d0da';

/** The style sheet of a picture; `auto` follows the reader's preference. */
export function styleSheet(theme: 'auto' | 'light' | 'dark'): string {
  const scope = `.pw-${theme}`;
  const rules = [
    `${scope}{${theme === 'dark' ? darkColors : lightColors};font-family:system-ui,-apple-system,"Segoe UI","Liberation Sans",Arial,sans-serif}`,
    ...(theme === 'auto' ? [`@media (prefers-color-scheme:dark){${scope}{${darkColors}}}`] : []),
    `${scope} text{fill:var(--pw-ink);dominant-baseline:central}`,
    `${scope} .pw-soft{fill:var(--pw-soft)}`,
    `${scope} .pw-mid{text-anchor:middle}`,
    `${scope} .pw-end{text-anchor:end}`,
    `${scope} .pw-grid{stroke:var(--pw-line);stroke-width:1;fill:none}`,
    `${scope} .pw-arrow{stroke:var(--pw-arrow);stroke-width:1.1;fill:none}`,
    `${scope} .pw-on-dark text{fill:#ffffff;text-anchor:middle}`,
    `${scope} .pw-on-light text{fill:#14202b;text-anchor:middle}`,
  ];
  return `<style>${rules.join('')}</style>`;
}
