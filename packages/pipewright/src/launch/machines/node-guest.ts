/** @file A machine other than number 0: its launcher goes to that of machine 0. */
import { connect, type Socket } from 'node:net';
import { PipelineError } from '../../base/errors.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import {
  type HubMessage,
  lostNode,
  type NodeEvents,
  type NodeLink,
  type NodeMessage,
  type NodeOptions,
  type NodeReport,
} from './node-link.ts';
import { NodeSocket } from './node-socket.ts';

const RETRY_MS = 200;

/** Goes to machine 0 and waits until all machines are there. */
export async function openGuest(options: NodeOptions, events: NodeEvents): Promise<NodeLink> {
  const deadline = steadyMs() + options.joinMs;
  const guest = new Guest(await reach(options, deadline), options, events);
  const timer = setTimeout(() => guest.giveUp(late(options, 'not all machines came')), deadline - steadyMs());
  try {
    await guest.complete;
  } finally {
    clearTimeout(timer);
  }
  return guest;
}

/** Connects, again and again: machine 0 may be started later. */
async function reach(options: NodeOptions, deadline: number): Promise<Socket> {
  let why = 'no answer';
  for (let left = options.joinMs; left > 0; left = deadline - steadyMs()) {
    const socket = connect(options.port, options.host);
    const timer = setTimeout(() => socket.destroy(), left);
    socket.on('error', (error) => (why = error.message));
    const reached = await new Promise<boolean>((resolve) => {
      socket.once('connect', () => resolve(true)).once('close', () => resolve(false));
    });
    clearTimeout(timer);
    if (reached) return socket;
    await new Promise((resolve) => setTimeout(resolve, Math.min(RETRY_MS, Math.max(0, deadline - steadyMs()))));
  }
  throw late(options, why);
}

function late({ host, port, joinMs }: NodeOptions, why: string): PipelineError {
  return new PipelineError(
    'TIMED_OUT',
    `launch: machine 0 did not begin at ${host}:${port} within ${joinMs} ms (${why}); is its launcher running, with the same masterAddr and masterPort, and may this machine reach port ${port} there?`,
  );
}

class Guest implements NodeLink {
  readonly complete: Promise<void>;
  giveUp: (error: PipelineError) => void = () => undefined;
  private begin: () => void = () => undefined;
  private readonly link: NodeSocket<NodeMessage | HubMessage>;
  private readonly options: NodeOptions;
  private readonly events: NodeEvents;
  private lost: RankFailure | undefined;
  private finish: (report: NodeReport) => void = () => undefined;
  private own: NodeReport = { failures: [], places: [] };

  constructor(socket: Socket, options: NodeOptions, events: NodeEvents) {
    this.options = options;
    this.events = events;
    this.complete = new Promise((resolve, reject) => {
      this.begin = resolve;
      this.giveUp = (error) => {
        this.close();
        reject(error);
      };
    });
    this.link = new NodeSocket(socket, {
      message: (message) => this.hear(message as HubMessage),
      lost: (why) => this.lose(why),
    });
    const { nodeRank, nnodes, ranks } = options;
    this.link.send({ kind: 'hello', node: nodeRank, nnodes, ranks });
  }

  failed(failure: RankFailure): void {
    this.link.send({ kind: 'failed', failure });
  }

  over(report: NodeReport): Promise<NodeReport> {
    this.own = report;
    this.link.send({ kind: 'over', ...report });
    return new Promise((resolve) => {
      this.finish = resolve;
      if (this.lost !== undefined) resolve(this.withLoss());
    });
  }

  close(): void {
    this.link.close();
  }

  private hear(message: HubMessage): void {
    if (message.kind === 'go') this.begin();
    else if (message.kind === 'refused')
      this.giveUp(new PipelineError('BAD_OPTION', `launch: machine 0 refused this machine: ${message.why}`));
    else if (message.kind === 'failed') this.events.failed(message.failure);
    else this.finish({ failures: message.failures, places: message.places });
  }

  private lose(why: string): void {
    this.lost = lostNode(0, this.options.ranks, why);
    this.giveUp(new PipelineError('PEER_LOST', `launch: ${this.lost.message}, before all machines were there`));
    this.events.failed(this.lost);
    this.finish(this.withLoss());
  }

  /** What is known where machine 0 can tell no more. */
  private withLoss(): NodeReport {
    return { failures: [...this.own.failures, this.lost as RankFailure], places: this.own.places };
  }
}
