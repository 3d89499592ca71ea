/** @file Which requests are answered: the right token, the host that was asked for, and no page of another origin. */
import { timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

/** What a request must show. */
export interface Gate {
  readonly token: string;
  /** `host:port` values that count as this server. */
  readonly hosts: ReadonlySet<string>;
}

/** Why a request is refused: status and reason; null where it may pass. */
export function refusal(request: IncomingMessage, url: URL, gate: Gate): { status: number; reason: string } | null {
  const { method, headers } = request;
  if (method !== 'GET' && method !== 'HEAD') return { status: 405, reason: 'only GET is answered' };
  // A name that leads here without being this host's is somebody else's page (DNS rebinding).
  if (!gate.hosts.has(String(headers.host).toLowerCase())) return { status: 403, reason: 'this is another host' };
  const { origin } = headers;
  if (origin !== undefined && !gate.hosts.has(origin.replace(/^https?:\/\//, '').toLowerCase()))
    return { status: 403, reason: 'pages of other origins are not answered' };
  const site = headers['sec-fetch-site'];
  if (site === 'cross-site' && headers['sec-fetch-mode'] !== 'navigate')
    return { status: 403, reason: 'pages of other sites are not answered' };
  if (!sameToken(url.searchParams.get('token') ?? '', gate.token))
    return { status: 403, reason: 'the token is missing or wrong; open the address that the command has printed' };
  return null;
}

/** Compares without telling by its time how much was right. */
function sameToken(given: string, wanted: string): boolean {
  const [a, b] = [Buffer.from(given), Buffer.from(wanted)];
  return a.length === b.length && timingSafeEqual(a, b);
}
