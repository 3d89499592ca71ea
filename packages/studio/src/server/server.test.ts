/** @file The server: what it answers, and whom it refuses. */
import { appendFileSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { pageWith } from './page-file.ts';
import { type Studio, serveStudio } from './server.ts';

const opened: Studio[] = [];
const folders: string[] = [];
afterEach(async () => {
  for (const studio of opened.splice(0)) await studio.close();
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

async function serve(
  options: Parameters<typeof serveStudio>[0] = {},
): Promise<{ studio: Studio; port: number; token: string }> {
  const studio = await serveStudio(options);
  opened.push(studio);
  const url = new URL(studio.url);
  return { studio, port: Number(url.port), token: url.searchParams.get('token')! };
}

function ask(
  port: number,
  path: string,
  options: { method?: string; headers?: Record<string, string> } = {},
): Promise<{ status: number; body: string; headers: Record<string, unknown> }> {
  return new Promise((resolve, reject) => {
    const sent = request(
      {
        host: '127.0.0.1',
        port,
        path,
        method: options.method ?? 'GET',
        headers: { Host: `127.0.0.1:${port}`, ...options.headers },
      },
      (answer) => {
        let body = '';
        answer.on('data', (text) => (body += String(text)));
        answer.on('end', () => resolve({ status: answer.statusCode ?? 0, body, headers: answer.headers }));
      },
    );
    sent.on('error', reject);
    sent.end();
  });
}

describe('answers', () => {
  test('the page, with a policy that allows nothing but itself', async () => {
    const { port, token } = await serve({ files: [{ name: 'a.csv', text: '0F0,0B0' }] });
    const { status, body, headers } = await ask(port, `/?token=${token}`);
    expect(status).toBe(200);
    expect(body).toContain('"name":"a.csv"');
    const policy = String(headers['content-security-policy']);
    expect(policy).toContain("default-src 'none'");
    expect(policy).not.toMatch(/unsafe|https?:|\*/);
    expect(policy).toContain("frame-ancestors 'none'");
    expect(headers['x-content-type-options']).toBe('nosniff');
  });

  test('lines of a running job as they come, and those before', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'studio-'));
    folders.push(folder);
    writeFileSync(join(folder, 'rank-0.jsonl'), '{"kind":"run"}\n');
    const { port, token } = await serve({ live: folder });
    const lines = await new Promise<string>((resolve) => {
      const sent = request(
        { host: '127.0.0.1', port, path: `/events?token=${token}`, headers: { Host: `127.0.0.1:${port}` } },
        (answer) => {
          let text = '';
          answer.on('data', (chunk) => {
            text += String(chunk);
            if (text.includes('launcher') && text.includes('half')) {
              sent.destroy();
              resolve(text);
            }
          });
          appendFileSync(join(folder, 'rank-0.jsonl'), '{"half');
          appendFileSync(join(folder, 'rank-0.jsonl'), '":1}\n');
          appendFileSync(join(folder, 'launcher.jsonl'), '{"who":"launcher"}\n');
        },
      );
      sent.end();
    });
    expect(lines).toContain('data: 0 {"kind":"run"}\n\n');
    expect(lines).toContain('data: 0 {"half":1}\n\n');
    expect(lines).toContain('data: -1 {"who":"launcher"}\n\n');
  });
});

describe('refuses', () => {
  test('a wrong token, no token, a longer one', async () => {
    const { port, token } = await serve();
    for (const path of [
      '/',
      '/?token=',
      '/?token=x',
      `/?token=${token}x`,
      `/?token=${token.slice(1)}`,
      `/?token=${token.toLowerCase()}x`,
    ])
      expect((await ask(port, path)).status, path).toBe(403);
  });

  test('other hosts (DNS rebinding), other origins, other sites, other methods', async () => {
    const { port, token } = await serve();
    const path = `/?token=${token}`;
    expect((await ask(port, path, { headers: { Host: `evil.example:${port}` } })).status).toBe(403);
    expect((await ask(port, path, { headers: { Origin: 'http://evil.example' } })).status).toBe(403);
    expect(
      (await ask(port, path, { headers: { 'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Mode': 'no-cors' } })).status,
    ).toBe(403);
    for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS'])
      expect((await ask(port, path, { method })).status).toBe(405);
    expect((await ask(port, path, { headers: { Origin: `http://127.0.0.1:${port}` } })).status).toBe(200);
  });

  test('paths that lead elsewhere', async () => {
    const { port, token } = await serve();
    for (const path of [
      '/../../etc/passwd',
      '/%2e%2e/%2e%2e/etc/passwd',
      '/..%2f..%2fetc/passwd',
      '/studio.html',
      '//etc/passwd',
      '/events',
    ])
      expect((await ask(port, `${path}?token=${token}`)).status, path).toBe(404);
  });

  test('only files of a job are read from its folder', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'studio-'));
    folders.push(folder);
    writeFileSync(join(folder, 'secret.txt'), 'secret\n');
    symlinkSync('/etc/hostname', join(folder, 'hostname.jsonl'));
    writeFileSync(join(folder, 'rank-0.jsonl'), 'shown\n');
    const { port, token } = await serve({ live: folder });
    const text = await new Promise<string>((resolve) => {
      const sent = request(
        { host: '127.0.0.1', port, path: `/events?token=${token}`, headers: { Host: `127.0.0.1:${port}` } },
        (answer) => {
          let all = '';
          answer.on('data', (chunk) => {
            all += String(chunk);
            if (!all.includes('shown')) return;
            sent.destroy();
            resolve(all);
          });
        },
      );
      sent.end();
    });
    expect(text).not.toContain('secret');
  });

  test('a client that sends half a request does not keep others waiting', async () => {
    const { port, token } = await serve();
    const slow = Array.from({ length: 20 }, () =>
      connect(port, '127.0.0.1', function (this: { write(text: string): void }) {
        this.write('GET / HT');
      }),
    );
    for (const socket of slow) socket.on('error', () => undefined);
    expect((await ask(port, `/?token=${token}`)).status).toBe(200);
    for (const socket of slow) socket.destroy();
  });
});

test('text of a file cannot leave its element', () => {
  const page = pageWith({
    files: [{ name: '</script><script>alert(1)</script>', text: '<!--<script>\u2028' }],
    events: null,
  });
  const data = page.slice(page.indexOf('id="data">') + 10);
  const json = data.slice(0, data.indexOf('</script>'));
  expect(JSON.parse(json)).toEqual({
    files: [{ name: '</script><script>alert(1)</script>', text: '<!--<script>\u2028' }],
    events: null,
  });
  expect(json).not.toContain('<');
});
