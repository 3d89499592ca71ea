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
  /** One letter per column: `l` left, `r` right; default: the first left, the others right. */
  readonly align?: string;
}

/** Rows as aligned columns, the first row being the header. */
export function formatTable(rows: readonly (readonly (string | TableCell)[])[], options: TableOptions = {}): string {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === 'string' ? { text: cell } : cell)));
  const widths: number[] = [];
  for (const row of cells) row.forEach((cell, i) => (widths[i] = Math.max(widths[i] ?? 0, cell.text.length)));
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
