// @ts-check
/**
 * @file A program that saves one checkpoint of a small run: `node saving.mjs FOLDER STEP`. With DIE_AT it is killed at that call of the
 * file system, by the thread that writes. All weights have the value of the step.
 */
import process from 'node:process';
import { manualSeed, nn, noGrad, optim, randn, scope } from '@pipewright/torch';
import { setFileSystem } from '../../dist/checkpoint/writing/writer.js';
import { PipelineStage, saveCheckpoint } from '../../dist/index.js';

if (process.env['DIE_AT'] !== undefined) setFileSystem(new URL('./deadly-files.mjs', import.meta.url).href);
const [folder, step] = [process.argv[2] ?? '', Number(process.argv[3])];

manualSeed(1);
const stages = new PipelineStage(new nn.Sequential(new nn.Linear(4, 3), new nn.Linear(3, 2)), 0, 1);
const optimizer = new optim.AdamW(stages.module.parameters(), { lr: 0.1 });
scope(() => {
  /** @type {nn.Sequential} */ (stages.module)
    .forward(randn([2, 4]))
    .sum()
    .backward();
  optimizer.step();
});
noGrad(() => {
  for (const parameter of stages.module.parameters()) parameter.fill_(step);
});
saveCheckpoint(folder, { stages, optimizer, step, keep: 1 }).wait();
process.stdout.write('saved\n');
