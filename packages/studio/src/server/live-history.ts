/** @file What a job has told so far, for pages that come later: the newest lines, and how every rank began. */
import { LiveFolder } from './live-folder.ts';

/** Lines that are kept, by count and by bytes. */
const mostLines = 20_000;
const mostBytes = 64 * 1024 * 1024;

/** Lines of a job, each with its rank before it (-1: the launcher). */
export class LiveHistory {
  readonly lines: string[] = [];
  private bytes = 0;

  add(line: string): void {
    this.lines.push(line);
    this.bytes += line.length;
    while (this.lines.length > mostLines || this.bytes > mostBytes) this.forget();
  }

  /** Forgets the oldest line that is not the beginning of a rank's run: without those the rest cannot be read. */
  private forget(): void {
    const at = this.lines.findIndex((line) => !line.includes('"kind":"run"'));
    const [gone] = this.lines.splice(Math.max(0, at), 1);
    this.bytes -= gone?.length ?? 0;
  }
}

/** A line that a job has written, with its rank before it. */
export function lineWithRank({ rank, text }: { readonly rank: number; readonly text: string }): string {
  return `${rank} ${text.replaceAll('\r', '')}`;
}

/**
 * What a job has written into its folder until now.
 * @example pageWith({ files: [], events: null, lines: readLiveLines('live') })
 */
export function readLiveLines(path: string): readonly string[] {
  const folder = new LiveFolder(path);
  try {
    const history = new LiveHistory();
    for (const line of folder.read()) history.add(lineWithRank(line));
    return history.lines;
  } finally {
    folder.close();
  }
}
