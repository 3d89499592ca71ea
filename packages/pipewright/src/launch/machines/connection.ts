/** @file A connection between the launchers of two machines: messages as lines of JSON, signed, and a heartbeat. */
import type { Socket } from 'node:net';
import { steadyMs } from '../../base/steady-clock.ts';
import { type Fields, fields } from './messages.ts';
import { isProof, proofOf, Seal } from './secret.ts';

/** The interval of heartbeats. */
const BEAT_MS = 1000;
/** How long without a message or heartbeat until the other side counts as lost. */
const SILENCE_MS = 15_000;
/** Characters of one message, before the other side has shown that it knows the secret and afterwards. */
const LONGEST = { unproven: 2000, proven: 32_000_000 } as const;

/** Each machine has a clock of its own, so times are sent as how long ago they were. */
const TIME = 'atMs';

/** The callbacks of one side. An error that `message` throws counts as a mistake of the other side. */
export interface ConnectionEvents {
  message(message: Fields): void;
  /** The other side is gone, or has sent an invalid message. Called once. */
  lost(why: string): void;
}

/** One side of the connection. */
export class Connection {
  private readonly socket: Socket;
  private events: ConnectionEvents;
  private beat: NodeJS.Timeout | undefined;
  private heardMs = steadyMs();
  private over = false;
  private rest = '';
  private seals: { readonly own: Seal; readonly other: Seal } | undefined;

  constructor(socket: Socket, events: ConnectionEvents) {
    this.socket = socket;
    this.events = events;
    socket.setNoDelay(true).setEncoding('utf8');
    socket.on('data', (text: string) => this.take(text));
    socket.on('error', (error) => this.lose(error.message));
    socket.on('close', () => this.lose('the connection was closed'));
  }

  /** From now on all messages are signed and go to other callbacks. Call it inside `message`, on both sides after the same message. */
  secure(
    key: { readonly secret: string; readonly own: string; readonly other: string },
    events: ConnectionEvents,
  ): void {
    const { secret, own, other } = key;
    this.seals = {
      own: new Seal(proofOf(secret, 'messages', own)),
      other: new Seal(proofOf(secret, 'messages', other)),
    };
    this.events = events;
    this.beat = setInterval(() => {
      this.send({ kind: 'beat' });
      // After a pause of this machine there may be messages to read first.
      if (this.isSilent())
        setImmediate(() => this.isSilent() && this.lose(`nothing was heard for ${SILENCE_MS / 1000} s`));
    }, BEAT_MS);
  }

  send(message: object): void {
    if (this.over || this.socket.destroyed || !this.socket.writable) return;
    const text = JSON.stringify(message, (key, item) => (key === TIME ? item - steadyMs() : item));
    this.socket.write(`${this.seals === undefined ? '' : `${this.seals.own.sign(text)} `}${text}\n`);
  }

  /** Ends the connection when everything was sent. */
  close(): void {
    this.over = true;
    clearInterval(this.beat);
    this.socket.end();
    this.socket.unref();
  }

  /** Ends it at once, without a callback. */
  drop(): void {
    this.over = true;
    clearInterval(this.beat);
    this.socket.destroy();
  }

  private isSilent(): boolean {
    return steadyMs() - this.heardMs > SILENCE_MS;
  }

  private take(text: string): void {
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    for (const line of lines) this.line(line);
    if (this.rest.length > this.longest()) this.lose('it sent a message without an end');
  }

  private longest(): number {
    return this.seals === undefined ? LONGEST.unproven : LONGEST.proven;
  }

  private line(line: string): void {
    if (this.over) return;
    try {
      if (line.length > this.longest()) throw new RangeError('too long');
      const text = this.open(line);
      this.heardMs = steadyMs();
      this.events.message(fields(JSON.parse(text, (key, item) => (key === TIME ? item + steadyMs() : item))));
    } catch {
      this.lose('it sent something else than a launcher does');
    }
  }

  /** The message of a line, if its signature is right. */
  private open(line: string): string {
    if (this.seals === undefined) return line;
    const space = line.indexOf(' ');
    const text = line.slice(space + 1);
    if (space < 0 || !isProof(line.slice(0, space), this.seals.other.sign(text))) throw new TypeError('a signature');
    return text;
  }

  private lose(why: string): void {
    if (this.over) return;
    this.drop();
    this.events.lost(why);
  }
}
