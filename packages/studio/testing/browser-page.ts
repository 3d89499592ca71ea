/** @file A page of the studio in Chromium, for tests: opens exported pages, and keeps what went wrong and what was asked for. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach } from 'vitest';
import { pageWith, type StudioFile } from '../src/server/page-file.ts';

/** The Chromium to test with; undefined where there is none. */
export const chromiumPath: string | undefined = process.env['PIPEWRIGHT_CHROMIUM'];

/** A browser with one page, which is a new one in every test. */
export class BrowserPage {
  page!: Page;
  /** Errors of the page. */
  problems: string[] = [];
  /** Requests that would leave this machine's files. */
  requests: string[] = [];
  readonly folder: string = mkdtempSync(join(tmpdir(), 'studio-page-'));
  private browser!: Browser;

  /** To be called where tests are described. */
  constructor() {
    beforeAll(async () => {
      this.browser = await chromium.launch({
        executablePath: chromiumPath!,
        args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'],
        timeout: 60_000,
      });
    }, 90_000);
    afterAll(async () => {
      await this.browser?.close();
      rmSync(this.folder, { recursive: true });
    }, 60_000);
    beforeEach(async () => {
      await this.page?.close();
      this.page = await this.browser.newPage({ viewport: { width: 1024, height: 640 } });
      this.page.setDefaultTimeout(30_000);
      this.problems = [];
      this.requests = [];
      this.page.on('pageerror', (error) => this.problems.push(error.message));
      this.page.on('console', (message) => {
        if (message.type() === 'error') this.problems.push(message.text());
      });
      this.page.on('request', (request) => {
        if (!/^(file|data|blob|about):/.test(request.url())) this.requests.push(request.url());
      });
    }, 60_000);
  }

  /** Opens the exported page with files and settings. */
  async open(settings = '', files: readonly StudioFile[] = []): Promise<void> {
    const file = join(this.folder, 'page.html');
    writeFileSync(file, pageWith({ files, events: null }));
    await this.page.goto('about:blank');
    await this.page.goto(`${pathToFileURL(file).href}${settings === '' ? '' : `#${settings}`}`);
    await this.page.waitForSelector('header');
  }

  /** One more page, to be closed by who asked for it. */
  another(): Promise<Page> {
    return this.browser.newPage({ viewport: { width: 1024, height: 640 } });
  }

  /** Takes a picture for the guide into the folder PIPEWRIGHT_PICTURES, if there is one; `at` is scrolled to the end of the window. */
  async picture(name: string, at?: string): Promise<void> {
    const into = process.env['PIPEWRIGHT_PICTURES'];
    if (into === undefined) return;
    const before = this.page.viewportSize()!;
    await this.page.setViewportSize({ width: 1280, height: 800 });
    await this.page.mouse.move(0, 0);
    await this.page.evaluate((selector) => {
      if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
      if (selector === null) scrollTo(0, 0);
      else document.querySelector(selector)?.scrollIntoView({ block: 'end' });
    }, at ?? null);
    await this.page.waitForTimeout(500); // the timeline is drawn in the new size
    await this.page.screenshot({ path: join(into, name) });
    await this.page.setViewportSize(before);
  }

  /** The text of what matches. */
  text(selector: string): Promise<string | null> {
    return this.page.textContent(selector);
  }

  /** What a button gives as a file: its name and its bytes. */
  async download(button: string): Promise<{ name: string; bytes: Buffer }> {
    const [download] = await Promise.all([
      this.page.waitForEvent('download'),
      this.page.click(`button:text-is("${button}")`),
    ]);
    return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) };
  }
}
