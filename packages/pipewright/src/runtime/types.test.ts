/** @file The types of the main call: wrong uses do not compile, right ones do. The programs of the pages are compiled by docs/programs.test.ts. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

const root = new URL('../../../../', import.meta.url);
const folder = fileURLToPath(new URL('packages/pipewright/src/runtime/', root));

/** The errors of programs that exist only here, by file: the line and its text. */
function errorsOf(programs: Readonly<Record<string, string>>): Record<string, { line: number; text: string }[]> {
  const base = ts.readConfigFile(fileURLToPath(new URL('tsconfig.tests.json', root)), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(base.config, ts.sys, fileURLToPath(root));
  const files = Object.fromEntries(Object.entries(programs).map(([name, text]) => [`${folder}${name}.ts`, text]));
  const host = ts.createCompilerHost({ ...options, incremental: false });
  const { getSourceFile, fileExists, readFile } = host;
  host.fileExists = (path) => path in files || fileExists(path);
  host.readFile = (path) => files[path] ?? readFile(path);
  host.getSourceFile = (path, language, ...rest) =>
    files[path] === undefined
      ? getSourceFile(path, language, ...rest)
      : ts.createSourceFile(path, files[path], language, true);
  const unchecked = {
    ...options,
    incremental: false,
    noEmit: true,
    noUnusedLocals: false,
    noUnusedParameters: false,
    skipLibCheck: true,
  };
  const { tsBuildInfoFile: _, ...settings } = unchecked;
  const program = ts.createProgram(Object.keys(files), settings, host);
  return Object.fromEntries(
    Object.keys(programs).map((name) => {
      const source = program.getSourceFile(`${folder}${name}.ts`)!;
      const found = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
      return [
        name,
        found.map((each) => ({
          line: source.getLineAndCharacterOfPosition(each.start ?? 0).line,
          text: ts.flattenDiagnosticMessageText(each.messageText, '\n'),
        })),
      ];
    }),
  );
}

const beginning = `
import { Schedule } from '@pipewright/schedule';
import { nn, ones, Tensor } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage, Schedule1F1B, type LossFunction } from '../index.ts';
const [x, y] = [ones([4, 2]), ones([4, 2])];
const stage = new PipelineStage(new nn.Linear(2, 2), 0, 1);
const lossFn = (output: Tensor, target: Tensor): Tensor => nn.functional.mseLoss(output, target);
const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn });
interface Pair { readonly a: Tensor; readonly b: Tensor }
const pairLoss = (output: Pair, target: Pair, options?: { scale: number }): Tensor =>
  output.a.sub(target.a).sum().mul(options?.scale ?? 1);
const pairs = new PipelineRuntime<[Tensor, Tensor], Pair, Pair, { scale: number } | undefined>(stage, 'GPipe', { microbatches: 2, lossFn: pairLoss });
`;

/** One wrong use each, and a word of the error that must come. */
const wrong: readonly [use: string, word: string][] = [
  ['runtime.step(x, { taget: y });', 'taget'],
  ["new PipelineRuntime(stage, '1F1D', { microbatches: 2, lossFn });", '1F1D'],
  ['new PipelineRuntime(stage, "1F1B", { microbatches: 2, lossFn: (output: Tensor) => output.item() });', 'Tensor'],
  ['new PipelineRuntime(stage, "1F1B", { microbatches: 2, lossFn: "mse" });', 'string'],
  ['new PipelineRuntime(stage, "1F1B", { microbatch: 2, lossFn });', 'microbatch'],
  ['new PipelineRuntime(stage, "1F1B", { microbatches: "2", lossFn });', 'number'],
  ['new PipelineRuntime(new nn.Linear(2, 2), "1F1B", { microbatches: 2, lossFn });', 'PipelineStage'],
  ['runtime.step("x", { target: y });', 'string'],
  ['runtime.step(x, { target: "y" });', 'Tensor'],
  ['runtime.step(x, { target: y, losses: {} });', 'losses'],
  ['runtime.eval(x, { returnOutputs: "all" });', 'everywhere'],
  ['runtime.eval(x, { onOutput: (output: string) => output.length });', 'Tensor'],
  ['const shape: number = runtime.eval(x);', 'undefined'],
  ['pairs.step(x, { target: { a: x, b: y } });', 'Tensor'],
  ['pairs.step(x, y, { target: x });', 'Pair'],
  ['pairs.step(x, y, { target: { a: x, b: y }, lossKwargs: { scala: 2 } });', 'scala'],
  ['pairs.eval(x, y)?.c;', "'c'"],
  ['new Schedule1F1B(stage, "2", { lossFn });', 'number'],
  ['runtime.clipGradNorm_("1");', 'number'],
];

const right = `
runtime.step(x, { target: y });
runtime.step(x);
runtime.step();
runtime.step({ target: y, losses: [] });
const output: Tensor | undefined = runtime.eval(x, { returnOutputs: 'everywhere', onOutput: (part, m) => part.narrow(0, m, 1) });
runtime.step({ argMbs: x.split(2).map((rows) => [rows]), targetMbs: y.split(2) });
pairs.step(x, y, { target: { a: x, b: y }, lossKwargs: { scale: 2 } });
const part: Tensor | undefined = pairs.eval(x, y)?.a;
const inferred = new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: pairLoss });
const own: Pair | undefined = inferred.step(x, { target: { a: x, b: y } });
new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: new nn.MSELoss() }).step(x, { target: y });
new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: nn.functional.crossEntropy }).step(x, { target: y, lossKwargs: { reduction: 'sum' } });
new PipelineRuntime(stage, 'GPipe', { microbatches: 2, lossFn: (out, target) => nn.functional.mseLoss(out, target) });
new PipelineRuntime([stage], { order: [['0F0', '0B0']] }, { lossFn });
new PipelineRuntime(stage, Schedule.from({ order: [['0F0']] }));
new PipelineRuntime(stage, 'ZBV', { microbatches: 2 }).step(x, y, { kwargs: { mask: x, flag: true } });
new Schedule1F1B(stage, 2, { lossFn }).step(x, { target: y });
new Schedule1F1B(stage, { microbatches: 2, lossFn: new nn.MSELoss() }).step(x, { target: y });
const named: LossFunction = new nn.MSELoss();
export { named, output, own, part };
`;

test('wrong uses do not compile, right ones do', { timeout: 300_000 }, () => {
  const lines = wrong.map(([use]) => `{ ${use} }`);
  const first = beginning.split('\n').length - 1;
  const errors = errorsOf({
    'types-wrong': `${beginning}${lines.join('\n')}\nexport {};`,
    'types-right': `${beginning}${right}`,
  });
  wrong.forEach(([use, word], i) => {
    const found = errors['types-wrong']?.filter(({ line }) => line === first + i) ?? [];
    expect(found.map(({ text }) => text).join('\n'), use).toContain(word);
  });
  expect(errors['types-wrong']?.filter(({ line }) => line < first)).toEqual([]);
  expect(errors['types-right']).toEqual([]);
});

test('the signatures of step and eval have nothing unknown in them', () => {
  const source = readFileSync(new URL('packages/pipewright/src/runtime/runtime.ts', root), 'utf8');
  const signatures = source.match(/^ {2}(step|eval)\(.*\{$/gm) ?? [];
  expect(signatures).toHaveLength(2);
  for (const signature of signatures) expect(signature).not.toMatch(/unknown|any|never/);
});
