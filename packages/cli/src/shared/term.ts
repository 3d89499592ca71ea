/** @file Terminal output: whether to colour, and tables. */
import pc from 'picocolors';

/** Colours, or the same functions without effect. */
export type Colors = ReturnType<typeof pc.createColors>;

/** Whether to colour: as told by `--color`, else only on a terminal that wants it. */
export function wantsColor(told: boolean | undefined, stream: { readonly isTTY?: boolean } = process.stdout): boolean {
  if (told !== undefined) return told;
  const { NO_COLOR, FORCE_COLOR, TERM } = process.env;
  if (NO_COLOR !== undefined && NO_COLOR !== '') return false;
  if (FORCE_COLOR !== undefined && FORCE_COLOR !== '0' && FORCE_COLOR !== '') return true;
  return stream.isTTY === true && TERM !== 'dumb';
}

/** The colours to use. */
export function colors(told?: boolean): Colors {
  return pc.createColors(wantsColor(told));
}

/** Characters per line: as told, else the terminal's, else 100. */
export function lineWidth(told: number | undefined): number {
  return told ?? process.stdout.columns ?? 100;
}

/** A cell of a table: its text, and how it is painted once its width is known. */
export interface TableCell {
  readonly text: string;
  readonly paint?: (text: string) => string;
}

/** How a table is laid out. */
export interface TableOptions {
  /** One character per column: `l` left, `r` right; default: the first left, the others right. */
  readonly align?: string;
  /** Characters per line; a wider table has the texts of column `wrap` broken into lines, between words. */
  readonly width?: number;
  /** The column whose texts may be broken; default the last. */
  readonly wrap?: number;
}

/** Rows as aligned columns, the first row being the header. */
export function formatTable(rows: readonly (readonly (string | TableCell)[])[], options: TableOptions = {}): string {
  const given = rows.map((row) => row.map((cell) => (typeof cell === 'string' ? { text: cell } : cell)));
  const cells = options.width === undefined ? given : wrapColumn(given, options.width, options.wrap);
  const widths = columnWidths(cells);
  const lines = cells.map((row) =>
    row
      .map(({ text, paint }, i) => {
        const left = (options.align?.[i] ?? (i === 0 ? 'l' : 'r')) === 'l';
        const padded = left ? text.padEnd(widths[i]!) : text.padStart(widths[i]!);
        return paint === undefined ? padded : paint(padded);
      })
      .join('  ')
      .trimEnd(),
  );
  return `${lines.join('\n')}\n`;
}

function columnWidths(cells: readonly (readonly TableCell[])[]): number[] {
  const widths: number[] = [];
  for (const row of cells) row.forEach((cell, i) => (widths[i] = Math.max(widths[i] ?? 0, cell.text.length)));
  return widths;
}

/** The rows with the texts of one column broken so that lines fit, as far as words allow it. */
function wrapColumn(cells: readonly (readonly TableCell[])[], width: number, column?: number): TableCell[][] {
  const widths = columnWidths(cells);
  const wrap = column ?? widths.length - 1;
  const others = widths.reduce((sum, one, i) => sum + (i === wrap ? 0 : one + 2), 0);
  return cells.flatMap((row) => {
    const cell = row[wrap];
    if (cell === undefined) return [[...row]];
    const [first = '', ...rest] = wrapWords(cell.text, Math.max(8, width - others));
    const again = (text: string): TableCell[] =>
      row.map((other, i) => (i === wrap ? { ...other, text } : { text: '' }));
    return [row.map((other, i) => (i === wrap ? { ...other, text: first } : other)), ...rest.map(again)];
  });
}

/** Lines of at most `width` characters; only a longer word is broken, after a dot if it has one. */
export function wrapWords(text: string, width: number): string[] {
  const lines: string[] = [];
  const words = text.split(' ').flatMap((word) => breakWord(word, width));
  for (const word of words) {
    const last = lines.at(-1);
    if (last === undefined || last.length + 1 + word.length > width) lines.push(word);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines;
}

function breakWord(word: string, width: number): string[] {
  if (word.length <= width) return [word];
  const dot = word.lastIndexOf('.', width - 1) + 1;
  const cut = dot > 0 ? dot : width;
  return [word.slice(0, cut), ...breakWord(word.slice(cut), width)];
}
