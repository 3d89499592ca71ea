/** @file What ranks print: whole lines, each with its rank in front. */

/** Where a line was printed. */
export type OutputStream = 'stdout' | 'stderr';

/** Takes one line of one rank, without its end. */
export type LineSink = (line: string, from: { readonly rank: number; readonly stream: OutputStream }) => void;

/** Prints every line with its rank in front. @example printLine('loss 0.5', { rank: 2, stream: 'stdout' }) // [rank 2] loss 0.5 */
export function printLine(
  line: string,
  { rank, stream }: { readonly rank: number; readonly stream: OutputStream },
): void {
  process[stream].write(`[rank ${rank}] ${line}\n`);
}

/** Cuts what a rank prints into lines; `end` gives out a last line without end. */
export class LineCutter {
  private rest = '';
  private readonly sink: (line: string) => void;

  constructor(sink: (line: string) => void) {
    this.sink = sink;
  }

  write(text: string): void {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    for (const line of lines) this.sink(line);
  }

  end(): void {
    if (this.rest !== '') this.sink(this.rest);
    this.rest = '';
  }
}
