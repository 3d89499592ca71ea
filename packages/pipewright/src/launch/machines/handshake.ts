/** @file How two launchers prove to each other that they know the run's secret: each answers a random number of the other. */
import type { Socket } from 'node:net';
import { Connection, type ConnectionEvents } from './connection.ts';
import type { LinkOptions } from './link.ts';
import { text, whole } from './messages.ts';
import { isProof, makeSecret, proofOf } from './secret.ts';

/** The version of the messages; others are refused. */
const VERSION = 1;
/** How long the handshake may take. */
const LIMIT_MS = 10_000;
const LONGEST = 200;

/** The refusal after which a machine may try again. */
export const LATER = 'the ranks of the others are under way';

/** A machine that has proved the secret. */
export interface Arrival {
  readonly machine: number;
  readonly nnodes: number;
  readonly ranks: number;
}

/** Decides about connections. */
export interface Admission {
  /** Accepts a machine, or returns why not. */
  admit(arrival: Arrival, connection: Connection): ConnectionEvents | string;
  /** A connection that was not accepted has ended. */
  refused(): void;
}

/** Machine 0's side. Returns how to end it early. */
export function challenge(socket: Socket, secret: string, admission: Admission): () => void {
  const nonce = makeSecret();
  const timer = setTimeout(() => end(), LIMIT_MS);
  let open = true;
  const end = (): void => {
    if (!open) return;
    open = false;
    clearTimeout(timer);
    connection.drop();
    admission.refused();
  };
  const connection: Connection = new Connection(socket, {
    message: (message) => {
      const { kind, version, node, nnodes, ranks, nonce: theirs, proof } = message;
      if (kind !== 'hello' || version !== VERSION || typeof theirs !== 'string') throw new TypeError('a hello');
      const arrival = { machine: whole(node, 0, 1e6), nnodes: whole(nnodes, 1, 1e6), ranks: whole(ranks, 1, 1e6) };
      const said = [nonce, theirs, arrival.machine, arrival.nnodes, arrival.ranks];
      const known = isProof(proof, proofOf(secret, 'guest', ...said));
      const answer = known ? admission.admit(arrival, connection) : 'its secret is another one';
      clearTimeout(timer);
      open = false;
      if (typeof answer === 'string') {
        connection.send({ kind: 'refused', why: answer });
        connection.close();
        admission.refused();
        return;
      }
      connection.send({ kind: 'welcome', proof: proofOf(secret, 'hub', ...said) });
      connection.secure({ secret, own: `hub ${nonce} ${theirs}`, other: `guest ${nonce} ${theirs}` }, answer);
    },
    lost: end,
  });
  connection.send({ kind: 'challenge', version: VERSION, nonce });
  return end;
}

/** The answer of machine 0 to a machine. */
export type HandshakeResult =
  | { readonly connection: Connection }
  | { readonly refused: string }
  | { readonly lost: string };

/** The side of the other machines. `events` get the messages of machine 0 afterwards. */
export function respond(socket: Socket, options: LinkOptions, events: ConnectionEvents): Promise<HandshakeResult> {
  const { secret, nodeRank, nnodes, ranks } = options;
  const own = makeSecret();
  let said: (string | number)[] | undefined;
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      connection.drop();
      resolve({ lost: 'it did not answer' });
    }, LIMIT_MS);
    const settle = (entry: HandshakeResult): void => {
      clearTimeout(timer);
      if (!('connection' in entry)) connection.drop();
      resolve(entry);
    };
    const connection: Connection = new Connection(socket, {
      message: (message) => {
        if (message['kind'] === 'challenge' && said === undefined) {
          if (message['version'] !== VERSION) return settle({ refused: 'it has another version of pipewright' });
          said = [text(message['nonce'], LONGEST), own, nodeRank, nnodes, ranks];
          const proof = proofOf(secret, 'guest', ...said);
          connection.send({ kind: 'hello', version: VERSION, node: nodeRank, nnodes, ranks, nonce: own, proof });
        } else if (message['kind'] === 'refused')
          settle(message['why'] === LATER ? { lost: LATER } : { refused: text(message['why'], LONGEST) });
        else if (message['kind'] === 'welcome' && said !== undefined) {
          if (!isProof(message['proof'], proofOf(secret, 'hub', ...said)))
            return settle({ refused: 'what answers there does not know the secret of this run' });
          const nonces = `${String(said[0])} ${own}`;
          connection.secure({ secret, own: `guest ${nonces}`, other: `hub ${nonces}` }, events);
          settle({ connection });
        } else throw new TypeError('kind');
        return undefined;
      },
      lost: (why) => settle({ lost: why }),
    });
  });
}
