/** @file Machine 0: the launchers of the others come to it. */
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { PipelineError } from '../../base/errors.ts';
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

/** Waits for the launchers of all other machines. */
export async function openHub(options: NodeOptions, events: NodeEvents): Promise<NodeLink> {
  const { host, port, joinMs, nnodes } = options;
  const server = createServer();
  const hub = new Hub(options, events, server);
  server.on('connection', (socket) => hub.welcome(socket));
  server.listen(port);
  try {
    await once(server, 'listening');
  } catch (error) {
    throw new PipelineError(
      'NO_PORT',
      `launch: cannot listen on port ${port}, which the launchers use (masterPort + 1): ${(error as Error).message}; give another masterPort, the same on all machines`,
    );
  }
  // What goes wrong with a single connection is told by that connection.
  server.on('error', () => undefined);
  const timer = setTimeout(() => {
    const missing = Array.from({ length: nnodes }, (_, node) => node).filter((node) => node > 0 && !hub.has(node));
    hub.giveUp(
      new PipelineError(
        'TIMED_OUT',
        `launch: machine ${missing.join(', ')} did not come to ${host}:${port} within ${joinMs} ms; start a launcher there with nnodes ${nnodes} and its own nodeRank`,
      ),
    );
  }, joinMs);
  try {
    await hub.complete;
  } finally {
    clearTimeout(timer);
  }
  return hub;
}

class Hub implements NodeLink {
  /** All machines are there. */
  readonly complete: Promise<void>;
  giveUp: (error: PipelineError) => void = () => undefined;
  private allHere: () => void = () => undefined;
  private readonly options: NodeOptions;
  private readonly events: NodeEvents;
  private readonly server: Server;
  private readonly sockets = new Map<number, NodeSocket<HubMessage | NodeMessage>>();
  private readonly reports = new Map<number, NodeReport>();
  private allOver: () => void = () => undefined;

  constructor(options: NodeOptions, events: NodeEvents, server: Server) {
    this.options = options;
    this.events = events;
    this.server = server;
    this.complete = new Promise((resolve, reject) => {
      this.allHere = resolve;
      this.giveUp = (error) => {
        this.close();
        reject(error);
      };
    });
  }

  has(node: number): boolean {
    return this.sockets.has(node);
  }

  /** A machine, or a stranger, has come. */
  welcome(socket: Socket): void {
    let node: number | undefined;
    const link: NodeSocket<HubMessage | NodeMessage> = new NodeSocket(socket, {
      message: (message) => {
        if (message.kind === 'hello') node = this.enter(message, link);
        else if (node !== undefined) this.hear(node, message as NodeMessage);
      },
      lost: (why) => {
        if (node !== undefined) this.lose(node, why);
      },
    });
  }

  failed(failure: RankFailure): void {
    for (const link of this.sockets.values()) link.send({ kind: 'failed', failure });
  }

  async over(report: NodeReport): Promise<NodeReport> {
    this.reports.set(0, report);
    const { nnodes, ranks, endMs } = this.options;
    await new Promise<void>((resolve) => {
      this.allOver = resolve;
      this.check();
      // After a failure every machine ends its ranks; one that does not say so is gone.
      if (this.anyFailure()) setTimeout(() => setImmediate(resolve), endMs).unref();
    });
    for (let node = 1; node < nnodes; node++)
      if (!this.reports.has(node))
        this.reports.set(node, { failures: [lostNode(node, ranks, 'it did not end')], places: [] });
    const all = [...this.reports.values()];
    const whole = { failures: all.flatMap(({ failures }) => failures), places: all.flatMap(({ places }) => places) };
    for (const link of this.sockets.values()) link.send({ kind: 'report', ...whole });
    return whole;
  }

  close(): void {
    for (const link of this.sockets.values()) link.close();
    this.server.close();
    this.server.unref();
  }

  /** Takes a machine in, or says why not. */
  private enter(
    { node, nnodes, ranks }: NodeMessage & { readonly kind: 'hello' },
    link: NodeSocket<HubMessage | NodeMessage>,
  ): number | undefined {
    const { options } = this;
    const problem =
      nnodes !== options.nnodes
        ? `it has nnodes ${nnodes}, machine 0 has ${options.nnodes}`
        : ranks !== options.ranks
          ? `it starts ${ranks} ranks, machine 0 starts ${options.ranks}; all must start equally many`
          : !Number.isInteger(node) || node < 1 || node >= nnodes
            ? `its nodeRank is ${node}; those of the others are 1 to ${nnodes - 1}`
            : this.has(node)
              ? `there is a machine with nodeRank ${node} already`
              : undefined;
    if (problem !== undefined) {
      link.send({ kind: 'refused', why: problem });
      link.close();
      return undefined;
    }
    this.sockets.set(node, link);
    if (this.sockets.size === nnodes - 1) {
      for (const one of this.sockets.values()) one.send({ kind: 'go' });
      this.allHere();
    }
    return node;
  }

  private hear(node: number, message: NodeMessage): void {
    if (message.kind === 'failed') this.spread(node, message.failure);
    else if (message.kind === 'over') {
      this.reports.set(node, { failures: message.failures, places: message.places });
      this.check();
    }
  }

  private lose(node: number, why: string): void {
    this.sockets.delete(node);
    if (this.reports.has(node)) return;
    const failure = lostNode(node, this.options.ranks, why);
    this.reports.set(node, { failures: [failure], places: [] });
    this.spread(node, failure);
    this.check();
  }

  /** Tells a failure of one machine to all others. */
  private spread(from: number, failure: RankFailure): void {
    for (const [node, link] of this.sockets) if (node !== from) link.send({ kind: 'failed', failure });
    this.events.failed(failure);
  }

  private check(): void {
    if (this.reports.size === this.options.nnodes) this.allOver();
  }

  private anyFailure(): boolean {
    return [...this.reports.values()].some(({ failures }) => failures.length > 0);
  }
}
