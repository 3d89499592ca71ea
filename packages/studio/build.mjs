// @ts-check
/**
 * @file Bundles the page: script and style inside one HTML file, whose policy allows exactly these two and nothing else. Runs
 * after the TypeScript build; `npm run build` calls it.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { build } from 'esbuild';

const here = (/** @type {string} */ path) => new URL(path, import.meta.url);
const require = createRequire(import.meta.url);

const bundled = await build({
  entryPoints: [here('dist/page/main.js').pathname],
  bundle: true,
  format: 'iife',
  minify: true,
  target: 'es2023',
  write: false,
  legalComments: 'none',
  define: { 'process.env.NODE_ENV': '"production"' },
});
const script = /** @type {{ text: string }} */ (bundled.outputFiles[0]).text.replaceAll('</script', '<\\/script');
const style = [
  readFileSync(require.resolve('uplot/dist/uPlot.min.css'), 'utf8'),
  readFileSync(here('src/page/style.css'), 'utf8'),
]
  .join('\n')
  .trim();
const hash = (/** @type {string} */ text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  'worker-src blob:', // the page starts its own script again as a worker
  'img-src data: blob:',
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
].join('; ');
const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>Pipewright studio</title>
<style>${style}</style>
</head>
<body>
<div id="app"></div>
<script type="application/json" id="data">{}</script>
<script>${script}</script>
</body>
</html>
`;
mkdirSync(here('dist/page'), { recursive: true });
writeFileSync(here('dist/page/studio.html'), html);
writeFileSync(here('dist/page/policy.txt'), policy);
console.log(`studio: ${(html.length / 1024).toFixed(0)} kB`);
