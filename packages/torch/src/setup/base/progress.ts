/** @file Says what is being done and how far it is: one moving line on a terminal, a line now and then elsewhere. */

export interface Progress {
  /** A sentence of its own. */
  say(message: string): void;
  /** `done` of `total` units; drawn at most a few times a second. */
  step(label: string, done: number, total: number): void;
  /** Ends the moving line of `label`. */
  end(label: string): void;
}

/** A line that moves must not be drawn more often than this; a line that stays, not more often than that. */
const TERMINAL_MS = 100;
const PLAIN_MS = 3000;

export class LineProgress implements Progress {
  readonly #out: NodeJS.WriteStream;
  #lastMs = Number.NEGATIVE_INFINITY;
  #open = false;

  constructor(out: NodeJS.WriteStream = process.stderr) {
    this.#out = out;
  }

  say(message: string): void {
    this.#close();
    this.#lastMs = performance.now();
    this.#out.write(`${message}\n`);
  }

  step(label: string, done: number, total: number): void {
    if (done <= 0 && total <= 0) return; // nothing is known yet
    const now = performance.now();
    const terminal = this.#out.isTTY === true;
    if (now - this.#lastMs < (terminal ? TERMINAL_MS : PLAIN_MS)) return;
    this.#lastMs = now;
    const text = `${label}: ${formatProgress(done, total)}`;
    if (terminal) this.#out.write(`\r\u001b[K${text}`);
    else this.#out.write(`${text}\n`);
    this.#open = terminal;
  }

  end(label: string): void {
    if (this.#open) this.#out.write(`\r\u001b[K${label}: done\n`);
    this.#open = false;
    this.#lastMs = Number.NEGATIVE_INFINITY;
  }

  #close(): void {
    if (this.#open) this.#out.write('\n');
    this.#open = false;
  }
}

/** For callers that want no output. */
export const silent: Progress = { say() {}, step() {}, end() {} };

/** From here on a number is taken for bytes: no build of ours has as many steps. */
const BYTES_FROM = 1e4;

/** `120 of 539 MB (22 %)` for bytes, `12 of 40 (30 %)` for small counts, and without a total just what is done. */
export function formatProgress(done: number, total: number): string {
  const bytes = Math.max(done, total) >= BYTES_FROM;
  const unit = bytes ? ' MB' : '';
  const digits = Math.max(done, total) < 1e7 ? 1 : 0;
  const show = (n: number): string => (bytes ? (n / 1e6).toFixed(digits) : String(n));
  if (total <= 0) return `${show(done)}${unit}`;
  return `${show(done)} of ${show(total)}${unit} (${Math.min(100, Math.floor((100 * done) / total))} %)`;
}
