/** @file Serves the page on the loopback: one HTML file and, for a running job, a stream of what happens. Nothing else. */
import { randomBytes } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { LiveFolder } from './live-folder.ts';
import { LiveHistory, lineWithRank } from './live-history.ts';
import { pagePolicy, pageWith, type StudioFile } from './page-file.ts';
import { type Gate, refusal } from './requests.ts';

/** What is served. */
export interface StudioOptions {
  /** Files that the page shows. */
  readonly files?: readonly StudioFile[];
  /** The folder of a running job. */
  readonly live?: string;
  /** Address to listen on; default 127.0.0.1. */
  readonly host?: string;
  /** Default: a free one. */
  readonly port?: number;
}

/** A running server. */
export interface Studio {
  /** The address to open, token included. */
  readonly url: string;
  close(): Promise<void>;
}

/** How often the files of a job are looked at, in milliseconds. */
const pollMs = 100;
/** Bytes that may wait for a slow reader before it is let go; it comes back by itself. */
const mostWaitingBytes = 16 * 1024 * 1024;
const mostReaders = 32;

/**
 * Serves the studio.
 * @example const studio = await serveStudio({ files: [{ name: 'run.json', text }] }); console.log(studio.url)
 */
export async function serveStudio(options: StudioOptions = {}): Promise<Studio> {
  const host = options.host ?? '127.0.0.1';
  const token = randomBytes(24).toString('base64url');
  const page = pageWith({
    files: options.files ?? [],
    events: options.live === undefined ? null : `events?token=${token}`,
  });
  const feed = options.live === undefined ? null : new Feed(options.live);
  const hosts = new Set<string>();
  const gate: Gate = { token, hosts };
  const server = createServer((request, response) => answer(request, response, { gate, page, feed }));
  server.headersTimeout = 10_000;
  server.requestTimeout = 10_000;
  server.maxConnections = 128;
  await listen(server, options.port ?? 0, host);
  const { port } = server.address() as AddressInfo;
  for (const name of [host, 'localhost', '127.0.0.1', '[::1]']) hosts.add(`${name.toLowerCase()}:${port}`);
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}/?token=${token}`,
    close: () =>
      new Promise((resolve) => {
        feed?.close();
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

function answer(
  request: IncomingMessage,
  response: ServerResponse,
  { gate, page, feed }: { readonly gate: Gate; readonly page: string; readonly feed: Feed | null },
): void {
  response.setHeader('X-Content-Type-Options', 'nosniff');
  response.setHeader('Referrer-Policy', 'no-referrer');
  response.setHeader('Cross-Origin-Resource-Policy', 'same-origin');
  response.setHeader('X-Frame-Options', 'DENY');
  response.setHeader('Cache-Control', 'no-store');
  let url: URL;
  try {
    url = new URL(request.url ?? '/', 'http://studio');
  } catch {
    refuse(response, 400, 'the address is not one');
    return;
  }
  const problem = refusal(request, url, gate);
  if (problem !== null) refuse(response, problem.status, problem.reason);
  else if (url.pathname === '/events' && feed !== null && request.method === 'GET') feed.connect(response);
  else if (url.pathname !== '/') refuse(response, 404, 'there is only one page');
  else {
    response.setHeader('Content-Security-Policy', `${pagePolicy()}; frame-ancestors 'none'`);
    response.writeHead(200, { 'Content-Type': 'text/html; charset=utf-8' });
    response.end(request.method === 'HEAD' ? undefined : page);
  }
}

function refuse(response: ServerResponse, status: number, reason: string): void {
  response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' });
  response.end(`${reason}\n`);
}

/** What a job tells, for all pages that listen. */
class Feed {
  private readonly folder: LiveFolder;
  private readonly history: LiveHistory = new LiveHistory();
  private readonly readers = new Set<ServerResponse>();
  private readonly timer: NodeJS.Timeout;

  constructor(folder: string) {
    this.folder = new LiveFolder(folder);
    this.timer = setInterval(() => this.poll(), pollMs);
    this.timer.unref();
  }

  connect(response: ServerResponse): void {
    if (this.readers.size >= mostReaders) {
      refuse(response, 503, 'too many pages are open');
      return;
    }
    this.poll();
    response.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
    response.write(`retry: 1000\n\n${this.history.lines.map(eventOf).join('')}`);
    this.readers.add(response);
    response.on('close', () => this.readers.delete(response));
  }

  close(): void {
    clearInterval(this.timer);
    this.folder.close();
    for (const reader of this.readers) reader.end();
  }

  private poll(): void {
    for (const read of this.folder.read()) {
      const line = lineWithRank(read);
      this.history.add(line);
      for (const reader of this.readers) {
        if (reader.writableLength > mostWaitingBytes) reader.destroy();
        else reader.write(eventOf(line));
      }
    }
  }
}

/** A line as the stream has it. */
function eventOf(line: string): string {
  return `data: ${line}\n\n`;
}
