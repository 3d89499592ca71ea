// @ts-check
/**
 * @file Writes docs/reference/command-line.md from the help of every command, and docs/reference/error-codes.md from the places in
 * the sources that make errors. Run after a build: `node scripts/generate-reference.mjs`; with `--check` it only says whether the
 * pages are current.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import ts from 'typescript';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const banner = '<!-- Written by scripts/generate-reference.mjs; do not edit. -->';

/** The help pages of all commands. */
async function commandLine() {
  const { createProgram } = /** @type {typeof import('../packages/cli/src/main.ts')} */ (
    await import(pathToFileURL(join(root, 'packages/cli/dist/main.js')).href)
  );
  const program = createProgram();
  /** @param {typeof program} command */
  const helpOf = (command) => {
    let text = '';
    command.configureOutput({ writeOut: (part) => (text += part), getOutHelpWidth: () => 110 });
    command.outputHelp();
    return text.trimEnd();
  };
  const commands = [...program.commands].sort((a, b) => (a.name() < b.name() ? -1 : 1));
  const page = [
    ...[banner, '', '# Command line', ''],
    'What `npx pipewright COMMAND --help` prints. Commands about schedules need no libtorch. Exit codes: 0 done, 1 failed (also: a rule',
    'is broken, something is missing), 2 the command line cannot be carried out as written; `run` ends with the exit code of the first',
    'rank that failed. Results go to standard output or to `--out`; messages go to standard error and begin with `pipewright:`.',
    '',
    '| Command | |',
    '| --- | --- |',
    ...commands.map((command) => `| [${command.name()}](#${command.name()}) | ${command.description()} |`),
    '',
  ];
  for (const command of commands) page.push(`## ${command.name()}`, '', '```text', helpOf(command), '```', '');
  return `${page.join('\n').trimEnd()}\n`;
}

/** What codes mean that occur with many messages. @type {Readonly<Record<string, string>>} */
const meanings = {
  BAD_ARGUMENT: 'an argument of the wrong kind or out of range',
  BAD_OPTION: 'an option with a value that is not allowed',
  BAD_INPUT: 'inputs or targets of a step that do not fit',
  CLOSED: 'a group, channel or store that was closed',
  DEVICE: 'tensors or options on a device that does not fit',
  DTYPE: 'an element type that does not fit',
  FILE: 'a file that cannot be read or is not what it should be',
  GRAPH: 'a graph that is not well formed',
  INDEX: 'an index outside of its dimension or list',
  INTERNAL: 'a bug in Pipewright: please report it',
  LIBTORCH: 'an error of libtorch itself, in its words, cut to the sentence that helps',
  PEER_LOST: 'another rank ended or its connection broke',
  PROTOCOL: 'a message that does not follow the protocol: another version, or something else at that port',
  RANK: 'a rank that does not exist, or has the wrong role',
  SHAPE: 'tensors whose shapes do not fit',
  STALE_HANDLE: 'a tensor that was already freed',
  TIMED_OUT: 'a wait for another rank that took longer than the time limit',
  UNKNOWN_OPTION: 'an option that does not exist; the nearest name is in the message',
};

/** @typedef {{ code: string, message: string, file: string }} Place */

/** Calls such as `new TorchError('CODE', 'message')` and `fail('CODE', ...)`. @param {string} file @returns {Place[]} */
function placesInTypeScript(file) {
  const source = ts.createSourceFile(file, readFileSync(file, 'utf8'), ts.ScriptTarget.ESNext, true);
  /** @type {Place[]} */
  const places = [];
  /** @param {ts.Node} node */
  const visit = (node) => {
    if (ts.isNewExpression(node) || ts.isCallExpression(node)) {
      const [first, second] = node.arguments ?? [];
      const message = second === undefined ? undefined : textOf(second);
      if (first !== undefined && message !== undefined && (ts.isNewExpression(node) || message.includes(' ')))
        for (const code of codesOf(first)) places.push({ code, message, file });
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return places;
}

/** The codes that an argument may be. @param {ts.Expression} node @returns {string[]} */
function codesOf(node) {
  if (ts.isStringLiteral(node))
    return /^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*$/.test(node.text) && node.text.length > 2 ? [node.text] : [];
  if (ts.isConditionalExpression(node)) return [...codesOf(node.whenTrue), ...codesOf(node.whenFalse)];
  return [];
}

/** A string or template with `…` for its values; undefined for anything else. @param {ts.Expression} node @returns {string | undefined} */
function textOf(node) {
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) return node.text;
  if (ts.isTemplateExpression(node))
    return node.head.text + node.templateSpans.map(({ literal }) => `…${literal.text}`).join('');
  if (ts.isBinaryExpression(node)) return `${textOf(node.left) ?? '…'}${textOf(node.right) ?? '…'}`;
  return undefined;
}

/** `CodedError("CODE", "message" + ...)`. @param {string} file @returns {Place[]} */
function placesInCpp(file) {
  const text = readFileSync(file, 'utf8');
  return [...text.matchAll(/CodedError\("([A-Z_0-9]+)",\s*([^;]*)\);/g)].map(([, code = '', argument = '']) => {
    const pieces = [...argument.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map((match) => match[1]);
    return { code, message: `${pieces.join('…')}` || '…', file };
  });
}

/** @param {string} dir @param {RegExp} pattern */
function filesIn(dir, pattern) {
  if (!existsSync(dir)) return [];
  return readdirSync(dir, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && pattern.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

/** The page of codes. */
function errorCodes() {
  const page = [
    ...[banner, '', '# Error codes', ''],
    'Every error of ours has a `code`, which is meant to stay, and a message that names the rule, the values and the way out; `…` stands',
    'for values. `TorchError` (with `AddonError` and `DistributedError`) comes from `@pipewright/torch`, `ScheduleError` from',
    '`@pipewright/schedule`, `PipelineError` (with `StepError` and `LaunchError`) from `pipewright`.',
    '',
    '```ts',
    "import { ones, TorchError } from '@pipewright/torch';",
    '',
    'try {',
    '  ones([2, 3]).at(5);',
    '} catch (error) {',
    '  if (error instanceof TorchError) console.log(error.code);',
    '}',
    '```',
    '',
    '```text',
    'INDEX',
    '```',
    '',
  ];
  for (const name of ['pipewright', 'schedule', 'torch', 'cli']) {
    const dir = join(root, 'packages', name);
    const places = [
      ...filesIn(join(dir, 'src'), /^(?!.*\.test\.).*\.ts$/).flatMap(placesInTypeScript),
      ...filesIn(join(dir, 'native'), /\.(?:cc|h)$/).flatMap(placesInCpp),
    ];
    const codes = [...new Set(places.map(({ code }) => code))].sort();
    if (codes.length === 0) continue;
    const title = name === 'pipewright' ? 'pipewright' : `@pipewright/${name}`;
    page.push(`## ${title}`, '', '| Code | Message | Raised in |', '| --- | --- | --- |');
    for (const code of codes)
      page.push(
        rowOf(
          code,
          places.filter((place) => place.code === code),
          dir,
        ),
      );
    page.push('');
  }
  return `${page.join('\n').trimEnd()}\n`;
}

/** @param {string} code @param {Place[]} places @param {string} dir */
function rowOf(code, places, dir) {
  const messages = [
    ...new Set(
      places.map(({ message }) => message.replaceAll('|', '\\|').replaceAll('\n', ' ').replaceAll('<', '&lt;').trim()),
    ),
  ].sort();
  const meaning = meanings[code];
  const told = meaning === undefined ? messages.slice(0, 3).join('<br>') : meaning;
  const more = meaning === undefined && messages.length > 3 ? `<br>and ${messages.length - 3} more` : '';
  const folders = [...new Set(places.map(({ file }) => relative(dir, dirname(file)).replaceAll('\\', '/')))].sort();
  return `| \`${code}\` | ${told}${more} | ${folders.join(', ')} |`;
}

const files = new Map([
  ['docs/reference/command-line.md', await commandLine()],
  ['docs/reference/error-codes.md', errorCodes()],
]);
/** What must agree: of the error codes the codes themselves, so that a reworded message does not make the page stale. @param {string} text */
const essence = (text) => (text.includes('# Error codes') ? text.replace(/^(\| `\w+` \|).*$/gm, '$1') : text);
for (const [path, text] of files) {
  const current = existsSync(join(root, path)) ? readFileSync(join(root, path), 'utf8') : '';
  if (!process.argv.includes('--check')) writeFileSync(join(root, path), text);
  else if (essence(current) !== essence(text)) {
    console.error(`${path} is not current; run: node scripts/generate-reference.mjs`);
    process.exitCode = 1;
  }
}
