// @ts-check
/**
 * @file Draws every schedule into docs/gallery/ and writes docs/gallery/README.md with the numbers of each. Run after a build:
 * `node scripts/generate-gallery.mjs`; with `--check` it only says whether the files are as they should be.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const { buildSchedule, lower, percent, quantity, renderSvg, scheduleDefinitions, simulate } =
  /** @type {typeof import('@pipewright/schedule')} */ (
    await import(pathToFileURL(join(root, 'packages/schedule/dist/index.js')).href)
  );

/**
 * A picture of the page.
 * @typedef {{ name: string, ranks: number, microbatches: number, stagesPerRank?: number, comm?: number, lowered?: boolean }} Drawing
 */

/** The shape in which every schedule is drawn: small enough to read every action. */
const small = { ranks: 4, microbatches: 8 };
/** The shapes of the table of numbers. */
const shapes = [small, { ranks: 8, microbatches: 32 }];

/** @type {(Drawing & { file: string, says: string })[]} */
const large = [
  {
    ...{ file: '64-ranks-1f1b', name: '1F1B', ranks: 64, microbatches: 128 },
    says: '1F1B: a third of the step is bubble, and rank 0 holds 64 microbatches.',
  },
  {
    ...{ file: '64-ranks-interleaved', name: 'Interleaved1F1B', ranks: 64, microbatches: 128, stagesPerRank: 4 },
    says: 'Interleaved 1F1B with 4 stages per rank: a quarter of that bubble, for more messages and a little more memory.',
  },
  {
    ...{ file: '64-ranks-zbv', name: 'ZBVZeroBubble', ranks: 64, microbatches: 128 },
    says: 'ZBV: no rank idles between its first and its last action, and all ranks hold the same memory.',
  },
];

/**
 * Costs of a rank's share of the model dealt to its stages, so that all schedules do the same work: F = I = W = 1 and
 * one activation per rank and microbatch.
 * @param {Drawing} drawing
 */
function play({ name, ranks, microbatches, stagesPerRank, comm = 0, lowered = false }) {
  const definition = /** @type {NonNullable<(typeof scheduleDefinitions)[number]>} */ (
    scheduleDefinitions.find((d) => d.name === name)
  );
  const chunks = stagesPerRank ?? definition.stagesPerRank.default;
  const costs = { F: 1 / chunks, I: 1 / chunks, W: 1 / chunks, activation: 1 / chunks, comm };
  const schedule = buildSchedule(name, { ranks, microbatches, stagesPerRank: chunks, costs });
  return simulate(lowered ? lower(schedule) : schedule, costs);
}

/** @param {Drawing} drawing */
function draw(drawing) {
  return renderSvg(play(drawing), { memoryUnit: "in a rank's activations of one microbatch" });
}

/** @param {readonly string[]} cells */
const row = (cells) => `| ${cells.join(' | ')} |`;

/** @param {ReturnType<typeof play>} step */
function numbers(step) {
  const peak = Math.max(...step.peakMemory);
  return [quantity(step.makespan), percent(step.bubble.makespan), percent(step.bubble.span), quantity(peak)];
}

/** The page and its pictures, by path. @returns {Map<string, string>} */
function makeFiles() {
  const files = new Map();
  /** @param {string} name @param {Drawing} drawing */
  const picture = (name, drawing) => {
    files.set(`docs/gallery/${name}.svg`, draw(drawing));
    return `![${drawing.name} at ${drawing.ranks} ranks](${name}.svg)`;
  };
  const training = scheduleDefinitions.filter((definition) => definition.hasBackward);
  const page = [
    '<!-- Written by scripts/generate-gallery.mjs; do not edit. -->',
    '',
    '# Gallery of schedules',
    '',
    'Every schedule on the same work: for each microbatch a rank takes 1 for the forward, 1 for the input half and 1 for the',
    'weight half of the backward, no matter into how many stages its part of the model is split; messages take no time. Peak',
    'memory is the number of microbatches whose activations a rank holds. Bubble is idle time: as a share of the makespan (what',
    'you wait for) and of the span (from the first to the last action of a rank, as the zero-bubble papers count it).',
    '[Schedules](../guide/schedules.md) explains the notation.',
    '',
  ];
  for (const shape of shapes) {
    page.push(
      `## ${shape.ranks} ranks, ${shape.microbatches} microbatches`,
      '',
      row(['schedule', 'stages per rank', 'makespan', 'bubble/makespan', 'bubble/span', 'peak memory']),
      row(['---', '--:', '--:', '--:', '--:', '--:']),
    );
    for (const { name, stagesPerRank } of training) {
      const [makespan, ...others] = numbers(play({ name, ...shape }));
      const link = shape === small ? `[${name}](#${name.toLowerCase()})` : name;
      page.push(row([link, String(stagesPerRank.default), `${makespan}`, ...others]));
    }
    page.push('');
  }
  for (const { name, summary } of scheduleDefinitions) {
    const [makespan, ofMakespan, ofSpan, peak] = numbers(play({ name, ...small }));
    page.push(
      ...[`## ${name}`, '', summary, '', picture(name.toLowerCase(), { name, ...small }), ''],
      `Makespan ${makespan}; bubble ${ofMakespan} of the makespan, ${ofSpan} of the span; peak memory ${peak}.`,
      '',
    );
  }
  page.push('## With messages that take time', '');
  page.push('1F1B, lowered to sends and receives, a message taking half as long as a forward.', '');
  page.push(picture('slow-messages', { name: '1F1B', ...small, comm: 0.5, lowered: true }), '');
  page.push('## At 64 ranks', '');
  for (const { file, says, ...drawing } of large) page.push(says, '', picture(file, drawing), '');
  files.set('docs/gallery/README.md', `${page.join('\n').trimEnd()}\n`);
  return files;
}

/** What is not as it should be. @param {Map<string, string>} files */
function findStale(files) {
  const stale = [...files].filter(([path, text]) => !sameFile(join(root, path), text)).map(([path]) => path);
  return [...stale, ...strays(files)];
}

/** Pictures nobody shows any more. @param {Map<string, string>} files */
function strays(files) {
  const folder = join(root, 'docs/gallery');
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .map((name) => `docs/gallery/${name}`)
    .filter((path) => !files.has(path));
}

/** @param {string} path @param {string} text */
function sameFile(path, text) {
  return existsSync(path) && readFileSync(path, 'utf8') === text;
}

const files = makeFiles();
if (process.argv.includes('--check')) {
  const stale = findStale(files);
  for (const path of stale) console.error(`${path} is not current; run: node scripts/generate-gallery.mjs`);
  process.exitCode = stale.length === 0 ? 0 : 1;
} else {
  mkdirSync(join(root, 'docs/gallery'), { recursive: true });
  for (const path of strays(files)) rmSync(join(root, path));
  for (const [path, text] of files) writeFileSync(join(root, path), text);
  console.log(`${files.size} files in ${relative(process.cwd(), join(root, 'docs')) || '.'}`);
}
