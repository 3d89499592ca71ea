/** @file A connection between the launchers of two machines: messages as lines of JSON, and a beat that shows life. */
import type { Socket } from 'node:net';
import { steadyMs } from '../../base/steady-clock.ts';
import { LineCutter } from '../ranks/rank-output.ts';

/** How often each side shows that it lives. */
const BEAT_MS = 1000;
/** After how long without a sign of life the other side is taken for lost. */
const SILENCE_MS = 15_000;

/** Each machine has a clock of its own: times travel as how long ago they were. */
const TIME = 'atMs';

/** What one side hears. */
export interface NodeSocketEvents<Message> {
  message(message: Message): void;
  /** The other side is gone, or says what cannot be understood. Called once. */
  lost(why: string): void;
}

/** One side of the connection. */
export class NodeSocket<Message extends object> {
  private readonly socket: Socket;
  private readonly events: NodeSocketEvents<Message>;
  private readonly beat: NodeJS.Timeout;
  private heardMs = steadyMs();
  private over = false;

  constructor(socket: Socket, events: NodeSocketEvents<Message>) {
    this.socket = socket;
    this.events = events;
    const cutter = new LineCutter((line) => this.line(line));
    socket.setNoDelay(true).setEncoding('utf8');
    socket.on('data', (text: string) => cutter.write(text));
    socket.on('error', (error) => this.lose(error.message));
    socket.on('close', () => this.lose('the connection was closed'));
    this.beat = setInterval(() => {
      this.write({});
      // After a pause of this machine there may be something to read: first that.
      if (this.isSilent())
        setImmediate(() => this.isSilent() && this.lose(`nothing was heard for ${SILENCE_MS / 1000} s`));
    }, BEAT_MS);
  }

  send(message: Message): void {
    this.write(message);
  }

  /** Ends the connection when everything was sent. */
  close(): void {
    this.over = true;
    clearInterval(this.beat);
    this.socket.end();
    this.socket.unref();
  }

  private isSilent(): boolean {
    return steadyMs() - this.heardMs > SILENCE_MS;
  }

  private write(value: object): void {
    if (!this.socket.destroyed && this.socket.writable)
      this.socket.write(`${JSON.stringify(value, (key, item) => (key === TIME ? item - steadyMs() : item))}\n`);
  }

  private line(line: string): void {
    this.heardMs = steadyMs();
    let value: unknown;
    try {
      value = JSON.parse(line, (key, item) => (key === TIME ? item + steadyMs() : item));
    } catch {
      this.lose('it sent something else than a launcher does');
      return;
    }
    if (typeof value === 'object' && value !== null && 'kind' in value && !this.over)
      this.events.message(value as Message);
  }

  private lose(why: string): void {
    if (this.over) return;
    this.over = true;
    clearInterval(this.beat);
    this.socket.destroy();
    this.events.lost(why);
  }
}
