/** The built package in a real browser: build, lower, validate, simulate and draw from a page, nothing of Node around. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type BrowserContext, chromium } from 'playwright-core';
import { afterAll, describe, expect, test } from 'vitest';

const dist = fileURLToPath(new URL('../dist/', import.meta.url));
const browser = findBrowser();
if (browser === undefined) console.log('no Chromium on this machine: the test in a browser is left out');

function findBrowser(): string | undefined {
  const names = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'];
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const places = names.flatMap((name) => folders.map((folder) => join(folder, name)));
  return [process.env['PIPEWRIGHT_CHROMIUM'] ?? '', ...places].find((path) => path !== '' && existsSync(path));
}

/** Serves the built package, and a page that imports it. */
async function serve(): Promise<Server> {
  const script = "import * as library from '/index.js'; globalThis.library = library;";
  const page = `<!doctype html><meta charset="utf-8"><title>schedule</title><script type="module">${script}</script>`;
  const server = createServer((request, response) => {
    const path = new URL(request.url ?? '/', 'http://localhost').pathname;
    const file = join(dist, normalize(path));
    if (path === '/') response.setHeader('content-type', 'text/html').end(page);
    else if (!file.startsWith(dist) || !existsSync(file)) response.writeHead(404).end();
    else
      response
        .setHeader('content-type', extname(file) === '.js' ? 'text/javascript' : 'text/plain')
        .end(readFileSync(file));
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  return server;
}

describe.skipIf(browser === undefined)('in a browser', () => {
  const profile = mkdtempSync(join(tmpdir(), 'pipewright-browser-'));
  let server: Server | undefined;
  let context: BrowserContext | undefined;

  afterAll(async () => {
    await context?.close();
    server?.close();
    rmSync(profile, { recursive: true, force: true });
  });

  test('the built package does everything', async () => {
    server = await serve();
    context = await chromium.launchPersistentContext(profile, {
      executablePath: browser!,
      headless: true,
      args: [
        ...['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
        ...['--disable-component-update', '--disable-sync'],
      ],
    });
    const page = await context.newPage();
    const errors: string[] = [];
    page.on('pageerror', (error) => errors.push(error.message));
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    await page.goto(`${origin}/`);
    await page.waitForFunction(() => 'library' in globalThis);
    const result = await page.evaluate(() => {
      const { library: pw } = globalThis as unknown as { library: typeof import('./index.ts') };
      const schedule = pw.buildSchedule('ZBV', { ranks: 4, microbatches: 8 });
      const lowered = pw.lower(schedule);
      const step = pw.simulate(lowered, { F: 1, I: 1, W: 1, comm: 0.1 });
      const holder = document.createElement('div');
      holder.innerHTML = pw.renderSvg(step);
      document.body.append(holder);
      const box = holder.querySelector('svg')?.getBoundingClientRect();
      return {
        csv: pw.parseCsv(pw.formatCsv(schedule)).equals(schedule),
        violations: pw.validate(lowered),
        bubbleFree: pw.simulate(schedule, { F: 1, I: 1, W: 1 }).bubble.span,
        makespan: step.makespan,
        timeline: pw.renderTimeline(step).split('\n').length,
        table: pw.renderTable(schedule).split('\n').length,
        events: pw.toChromeTrace(step).traceEvents.length,
        bars: holder.querySelectorAll('rect title').length,
        size: [box?.width, (box?.height ?? 0) > 300],
        refused: (() => {
          try {
            pw.buildSchedule('1F1', { ranks: 1, microbatches: 1 });
            return '';
          } catch (error) {
            return (error as Error).message;
          }
        })(),
      };
    });
    expect(errors).toEqual([]);
    expect(result).toMatchObject({ csv: true, violations: [], bubbleFree: 0, timeline: 9, size: [1200, true] });
    expect(result.makespan).toBeGreaterThan(51);
    expect(result.events).toBeGreaterThan(500);
    expect(result.bars).toBeGreaterThan(4 * 48);
    expect(result.refused).toContain("did you mean '1F1B'?");
  });
});
