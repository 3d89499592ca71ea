/** @file From a model file to a plan, to its run, to the comparison; and what is refused on the way. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type PipelinePlan, planSimulation, readPlan } from '@pipewright/schedule';
import { beforeAll, expect, test } from 'vitest';
import { environment, folder, type Result, run } from '../../../testing/run-cli.ts';

const model = join(folder, 'model.mjs');
const train = join(folder, 'train.mjs');
const meshTrain = join(folder, 'mesh-train.mjs');
const torch = new URL('../../../../torch/dist/index.js', import.meta.url).href;
const schedule = new URL('../../../../schedule/dist/index.js', import.meta.url).href;
const pipewright = new URL('../../../../pipewright/dist/index.js', import.meta.url).href;

// A cache of its own for what is measured; libtorch and the addon stay where they are.
const cache = join(folder, 'cache');
const { XDG_CACHE_HOME, PIPEWRIGHT_CACHE } = process.env;
const env = {
  ...environment,
  XDG_CACHE_HOME: cache,
  PIPEWRIGHT_CACHE: PIPEWRIGHT_CACHE || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'pipewright'),
};

/** Runs a command line as one types it; no quoting. */
function cli(line: string): Result {
  return run(line.split(' '), '', env);
}

beforeAll(() => {
  writeFileSync(
    model,
    `import { nn, randn } from '${torch}';
class Model extends nn.Module {
  layers = new nn.ModuleList(Array.from({ length: 6 }, () => new nn.Linear(16, 16)));
  forward(x) { let y = x; for (const layer of this.layers) y = layer.forward(y).relu(); return y; }
}
export const model = () => new Model();
export const batch = (rows) => ({ args: [randn(rows, 16)], target: randn(rows, 16) });
export const lossFn = (output, target) => output.sub(target).square().mean();
`,
  );
  writeFileSync(
    train,
    `import { distributed, manualSeed, scope } from '${torch}';
import { givenPlan, pipeline, PipelineRuntime } from '${pipewright}';
import { batch, lossFn, model } from './model.mjs';
export function main() {
  const group = distributed.initProcessGroup();
  const plan = givenPlan();
  manualSeed(0);
  const pipe = pipeline(model(), { mbArgs: batch(plan.rows).args, plan });
  const stages = plan.stageToRank.flatMap((rank, stage) => (rank === group.rank ? [pipe.buildStage(stage)] : []));
  const runtime = new PipelineRuntime(stages, plan, { lossFn });
  const { args, target } = batch(plan.rows * plan.microbatches);
  for (let step = 0; step < 5; step++) scope(() => runtime.step(...args, { target, returnOutputs: false }));
}
`,
  );
  writeFileSync(
    meshTrain,
    readFileSync(train, 'utf8')
      .replace('PipelineRuntime }', 'PipelineRuntime, planStages }')
      .replace(/const stages = .*/, 'const { stages } = planStages(pipe, plan);'),
  );
});

let files = 0;
/** A file with the description of a machine. */
function machineFile(text: string): string {
  const file = join(folder, `machine-${files++}.json`);
  writeFileSync(file, text);
  return file;
}

const planOf = (file: string): PipelinePlan => readPlan(readFileSync(join(folder, file), 'utf8'));

test('a model is planned, run as planned, compared with the prediction, and refitted', () => {
  const made = cli(
    `plan ${model} --ranks 2 --batch 16 --rows 2,4 --rounds 1 --memory 1GB --no-cache --schedules GPipe 1F1B ZB1P --out ${join(folder, 'plan.json')} --picture ${join(folder, 'plan.svg')}`,
  );
  expect(made.err).toBe('');
  expect(made.code).toBe(0);
  expect(made.out).toMatch(
    /\d+ units on 2 ranks, batches of 16 rows; \d+ pipelines simulated, (\d+ of them run|the stages of \d+ measured)\n/,
  );
  expect(made.out).toMatch(/schedule +stages +microbatches x rows +step +rows\/s +bubble +peak +why/);
  expect(made.out).toMatch(
    /what would help most:\n +(stage \d 10% faster|1 GiB more on rank \d): step \d+\.\d% shorter/,
  );
  expect(made.out).toMatch(/stage 0 on rank 0: layers\.0/);
  expect(made.out).not.toMatch(/ 0\.0% (ahead|longer)/);
  const makespan = /Timeline in milliseconds, memory in bytes\n.*\nmakespan ([\d.]+);/.exec(made.out)?.[1];
  const plan = planOf('plan.json');
  // Where plans were run, their steps took longer than actions alone, and that is said.
  const drawn = /without what a run adds to each:\n([\d.]+) ms of ([\d.]+) ms\.\n/.exec(made.out);
  expect(drawn === null).toBe(!/of them run/.test(made.out));
  if (drawn !== null) {
    expect(Number(drawn[1]) / Number(makespan)).toBeCloseTo(1, 1);
    expect(Number(drawn[2]) / (1000 * plan.predicted.step)).toBeCloseTo(1, 1);
  }
  expect(Number(makespan) / (1000 * planSimulation(plan).makespan)).toBeCloseTo(1, 1);
  expect(plan).toMatchObject({ ranks: 2 }); // one pipeline, which the program can run
  expect(plan.dataParallel).toBeUndefined();
  expect(plan.memory?.length).toBe(plan.stages);
  expect(plan.machine).toMatchObject({ memory: 1e9 });
  expect(plan.machine.latency).toBeGreaterThan(0);
  expect(readFileSync(join(folder, 'plan.svg'), 'utf8')).toContain('<svg');
  const ran = cli(`run --plan ${join(folder, 'plan.json')} --cores 1 --refit ${join(folder, 'refit.json')} ${train}`);
  expect(ran.err).toBe('');
  expect(ran.out).toMatch(/Predicted and recorded, \d+ steps?/);
  expect(ran.out).toMatch(/step +\d+\.\d\d ms +\d+\.\d\d ms +[+-]\d/);
  expect(ran.out).toMatch(/stage 0 F +\d/);
  expect(ran.out).toMatch(/rank 1 held +[\d,]+ +[\d,]+ +equal/);
  const refit = planOf('refit.json');
  expect({ ...refit, costs: [], predicted: 0 }).toEqual({ ...plan, costs: [], predicted: 0 });
  expect(refit.costs).not.toEqual(plan.costs);
  const own = join(folder, 'own-schedule.mjs');
  writeFileSync(
    own,
    readFileSync(train, 'utf8')
      .replace(
        'new PipelineRuntime(stages, plan,',
        "new PipelineRuntime(stages, buildSchedule('GPipe', { ranks: 2, stages: plan.stages, microbatches: 1 }),",
      )
      .replace('batch(plan.rows * plan.microbatches)', 'batch(plan.rows)')
      .replace('import { givenPlan', `import { buildSchedule } from '${schedule}';\nimport { givenPlan`),
  );
  const strayed = cli(
    `run --plan ${join(folder, 'plan.json')} --cores 1 --refit ${join(folder, 'strayed.json')} ${own}`,
  );
  expect(strayed).toEqual({
    code: 0,
    out: '',
    err: `pipewright: this run did not follow ${join(folder, 'plan.json')}: it ran GPipe with 1 microbatch; use givenPlan()\n`,
  });
}, 240_000);

test('a machine that one does not have: unequal ranks from a file; a limit that cannot be met names rank and bytes', () => {
  const machine = join(folder, 'machine.json');
  writeFileSync(
    machine,
    JSON.stringify({ memory: ['1GB', 1e9, '1000 MB'], slowness: [1, 1, 10_000], bandwidth: 1e9, latency: 1e-5 }),
  );
  const flags = `--ranks 3 --dp 1 --batch 8 --rows 2 --rounds 1 --no-cache --fast --schedules 1F1B --out ${join(folder, 'three.json')}`;
  const made = cli(`plan ${model} ${flags} --machine ${machine}`);
  expect({ code: made.code, err: made.err }).toEqual({ code: 0, err: '' });
  const { units, machine: planned } = planOf('three.json');
  // However unevenly a busy machine measured the layers, the slowest rank gets the least: one of them.
  expect(units[2]?.length).toBe(1);
  expect(planned).toMatchObject({ slowness: [1, 1, 10_000], memory: [1e9, 1e9, 1e9] });
  const small = cli(`plan ${model} ${flags} --memory 2KB`);
  expect(small.code).toBe(1);
  expect(small.err).toMatch(/no plan fits; the closest is 1F1B, 3 stages.*rank \d lacks [\d.]+ \w?i?B/);
}, 240_000);

test('two pipelines beside each other are planned, run on a mesh and compared; a program without a mesh is told how', () => {
  const file = join(folder, 'mesh.json');
  const made = cli(
    `plan ${model} --ranks 2 --dp 2 --shards gradients --batch 16 --rows 2 --rounds 1 --no-cache --fast --out ${file}`,
  );
  expect({ code: made.code, err: made.err }).toEqual({ code: 0, err: '' });
  expect(made.out).toMatch(/1F1B +1 x 2, shards of gradients +1 +4 x 2/);
  expect(planOf('mesh.json')).toMatchObject({ ranks: 1, dataParallel: { replicas: 2, level: 'gradients' } });
  const ran = cli(`run --plan ${file} --cores 1 ${meshTrain}`);
  expect({ code: ran.code, err: ran.err }).toEqual({ code: 0, err: '' });
  expect(ran.out).toMatch(/Predicted and recorded, \d+ steps?/);
  expect(ran.out).toMatch(/stage 0 F +\d/);
  const refused = cli(`run --plan ${file} --cores 1 ${train}`);
  expect(refused.code).not.toBe(0);
  expect(refused.err).toMatch(
    /the schedule is for 1 ranks, the group has 2; the plan has 2 pipelines.*planStages\(pipe, plan\)/s,
  );
}, 240_000);

test('shards of parameters: what is gathered for an action does not count as held for backwards', () => {
  const file = join(folder, 'shards.json');
  const flags = '--ranks 2 --dp 2 --shards parameters --batch 16 --rows 4 --rounds 1 --no-cache --schedules 1F1B';
  const made = cli(`plan ${model} ${flags} --out ${file}`);
  expect({ code: made.code, err: made.err }).toEqual({ code: 0, err: '' });
  const learning = join(folder, 'learning-train.mjs');
  writeFileSync(
    learning,
    readFileSync(meshTrain, 'utf8')
      .replace('{ distributed,', '{ distributed, optim,')
      .replace(
        'const { args,',
        'const adam = new optim.AdamW(stages.flatMap(({ module }) => module.parameters()));\n  const { args,',
      )
      .replace(/scope\(\(\) => (runtime.*\))\);/, 'scope(() => { adam.zeroGrad(); $1; adam.step(); });'),
  );
  const ran = cli(`run --plan ${file} --cores 1 ${learning}`);
  expect({ code: ran.code, err: ran.err }).toEqual({ code: 0, err: '' });
  expect(ran.out).toMatch(/rank 0 held +[\d,]+ +[\d,]+ +equal/);
}, 240_000);

test('one pipeline is planned unless --dp says otherwise, and several are named where they look better or where only they fit', () => {
  const file = join(folder, 'open.json');
  const machine = join(folder, 'fast-links.json');
  writeFileSync(machine, JSON.stringify({ bandwidth: 1e15, latency: 1e-9 }));
  const flags = `--ranks 2 --batch 4 --rows 2 --rounds 1 --no-cache --fast --schedules 1F1B --machine ${machine} --out ${file}`;
  const made = cli(`plan ${model} ${flags}`);
  expect({ code: made.code, err: made.err }).toEqual({ code: 0, err: '' });
  expect(planOf('open.json').dataParallel).toBeUndefined();
  // Two microbatches on two ranks leave a third of the step idle, and two replicas nothing.
  expect(made.out).toMatch(
    /2 (replicas|shards of \w+) of one stage \(1F1B\) look \d+\.\d% shorter, from units alone: --dp 2 plans/,
  );
  expect(cli(`plan ${model} ${flags} --dp all`).code).toBe(0);
  expect(planOf('open.json').dataParallel?.replicas).toBe(2);
  expect(cli(`plan ${model} ${flags} --dp 1`).out).not.toMatch(/--dp 2/);
  const many = cli(`plan ${model} ${flags.replace('--ranks 2 --batch 4', '--ranks 32 --batch 64')}`);
  expect(many.code).toBe(1);
  expect(many.err).toMatch(
    /the model has only \d+ layers, too few for 32 stages; \d+ data-parallel pipelines would fit: --dp \d+/,
  );
}, 240_000);

test('a model in TypeScript is planned, and an import that is missing is named', () => {
  const typed = join(folder, 'typed.ts');
  writeFileSync(
    typed,
    readFileSync(model, 'utf8').replace('(rows) =>', '(rows: number) =>').replace('forward(x)', 'forward(x: any)'),
  );
  const made = cli(
    `plan ${typed} --ranks 2 --batch 4 --rows 2 --rounds 1 --no-cache --fast --schedules 1F1B --out ${join(folder, 'typed.json')}`,
  );
  expect({ code: made.code, err: made.err }).toEqual({ code: 0, err: '' });
  expect(planOf('typed.json')).toMatchObject({ ranks: 2, schedule: '1F1B' });
  const lacking = join(folder, 'lacking.mjs');
  writeFileSync(lacking, `import 'nosuchpackage';\n`);
  expect(cli(`plan ${lacking} --ranks 2 --batch 4`)).toMatchObject({
    code: 2,
    err: `pipewright: cannot load ${lacking}: it imports the package nosuchpackage, which is not installed; npm install nosuchpackage\n`,
  });
  writeFileSync(lacking, `import './gone.mjs';\n`);
  expect(cli(`plan ${lacking} --ranks 2 --batch 4`)).toMatchObject({
    code: 2,
    err: `pipewright: cannot load ${lacking}: it imports ${join(folder, 'gone.mjs')}, which does not exist\n`,
  });
}, 240_000);

test('a plan replaces one of the same model; what was changed by hand, of another model, or no plan at all is kept aside', () => {
  const out = join(folder, 'again.json');
  const flags = `--batch 4 --rows 2 --rounds 1 --no-cache --fast --schedules 1F1B --out ${out}`;
  const again = (ranks: number, of = model): string => {
    const { code, err, out: said } = cli(`plan ${of} --ranks ${ranks} ${flags}`);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    return said.slice(said.indexOf('The best plan'));
  };
  const runs = `pipewright run --plan ${out} runs it.\n`;
  const kept = (number: number): string =>
    `What ${out} held was changed since it was planned or is of another model; it is in ${join(folder, `again.${number}.json`)} now.\n`;
  expect(again(2)).toBe(`The best plan is in ${out}; ${runs}`);
  expect(again(3)).toBe(`The best plan is in ${out}, in place of what was there; ${runs}`);
  expect(planOf('again.json').ranks).toBe(3);
  const edited = readFileSync(out, 'utf8')
    .replace('"ranks": 3', '"ranks":  3')
    .replace('"stateFactor": 4', '"stateFactor": 6');
  writeFileSync(out, edited);
  expect(again(2)).toBe(`The best plan is in ${out}, in place of what was there; ${runs}${kept(1)}`);
  expect(readFileSync(join(folder, 'again.1.json'), 'utf8')).toBe(edited);
  // Laid out anew, it still says the same.
  writeFileSync(out, JSON.stringify(JSON.parse(readFileSync(out, 'utf8'))));
  expect(again(2)).toBe(`The best plan is in ${out}, in place of what was there; ${runs}`);
  const other = join(folder, 'other.mjs');
  writeFileSync(other, readFileSync(model, 'utf8').replace('length: 6', 'length: 4'));
  const first = readFileSync(out, 'utf8');
  expect(again(2, other)).toContain(kept(2));
  expect(readFileSync(join(folder, 'again.2.json'), 'utf8')).toBe(first);
  writeFileSync(out, 'my notes');
  expect(again(2)).toContain(kept(3));
  expect(readFileSync(join(folder, 'again.3.json'), 'utf8')).toBe('my notes');
}, 240_000);

test('measurements of the same model on the same machine are kept', () => {
  const flags = `--ranks 2 --batch 4 --rows 2 --rounds 2 --fast --out ${join(folder, 'kept.json')}`;
  const exported = fileURLToPath(new URL('../../../../../testdata/models/mlp_dyn.pt2', import.meta.url));
  const alone = cli(`plan ${exported.replace('_dyn', '')} --ranks 2 --batch 8 --rounds 1 --no-cache --fast --out -`);
  expect(readPlan(alone.out)).toMatchObject({ ranks: 2, microbatches: 1 }); // the plan alone, what is said beside it
  expect(alone.err).toMatch(/The model takes exactly 8 rows, so the batch is one microbatch.*or raise --batch/);
  const first = cli(`plan ${exported} ${flags}`);
  expect(first.err).toBe('');
  expect(readdirSync(join(cache, 'pipewright', 'plans')).length).toBe(1);
  expect(cli(`plan ${exported} ${flags}`).out).toBe(first.out);
}, 240_000);

test.each([
  ['plan nosuch.mjs --ranks 2 --batch 4', /cannot load nosuch.mjs: there is no such file/],
  [`plan ${train} --ranks 2 --batch 4`, /exports no model/],
  [`plan ${model} --ranks 2 --batch 4 --rows 3`, /--rows 3: 4 rows are not divisible by 3/],
  [`plan ${model} --ranks 2 --batch 4 --dp 3`, /--dp 3: 2 ranks are not divisible by 3/],
  [`plan ${model} --ranks 2 --batch 4 --shards all`, /--shards all is not one of replicate, optimizer/],
  [
    `plan ${model} --ranks 2 --batch 4 --shards optimizer`,
    /--shards is for several pipelines: add --dp 2, or --dp all/,
  ],
  [`plan ${model} --ranks 2 --batch 4 --dp 1 --shards optimizer`, /--shards is for several pipelines/],
  [`plan ${model} --ranks 2 --batch 4 --memory much`, /Write bytes, such as 8e9, 20GB/],
  [`plan ${model} --ranks 2 --batch 4 --machine ${model}`, /is not JSON/],
  [
    `plan ${model} --ranks 2 --batch 4 --machine ${machineFile('{"memory":[8e9]}')}`,
    /memory is an array of 1; give .*2 ranks/,
  ],
  [`plan ${model} --ranks 2 --batch 4 --machine ${machineFile('{"memory":"8 apples"}')}`, /memory is '8 apples'; give/],
  [`plan ${model} --ranks 2 --batch 4 --machine ${machineFile('{"slowness":2}')}`, /slowness is 2; give a list of/],
  [`plan ${model} --ranks 2 --batch 4 --machine ${machineFile('{"memry":2}')}`, /'memry' is not one of memory/],
  [`plan ${model} --ranks 2 --batch 4 --memory 8GB,8GB,8GB`, /--memory has 3 values for 2 ranks/],
  [`plan ${model} --ranks 2 --batch 4 --state-factor much`, /It must be a number of at least 0/],
  [`plan ${model} --ranks 2 --batch 4 --schedules 1F1C`, /there is no schedule '1F1C'; did you mean '1F1B'/],
  [`plan ${folder} --ranks 2 --batch 4`, /is no model: give a \.pt2 file, or a JavaScript or TypeScript module/],
  [`run --plan ${model} ${train}`, /model\.mjs is no plan: not JSON .*give what pipewright plan wrote/],
  [`run --refit x.json ${train}`, /--refit is for runs with a plan/],
])('%s is refused', (command, message) => {
  const { code, err } = cli(command);
  expect(err).toMatch(message);
  expect(code).toBe(2);
});
