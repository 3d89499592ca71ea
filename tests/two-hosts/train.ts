/**
 * @file What the ranks of two-hosts.sh run: a pipeline of one stage per rank; the last rank compares losses and weights
 * with plain training. With `fail`, rank 3 breaks in step 2; with `endless`, training does not end.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { arange, distributed, manualSeed, nn, optim, scope, type Tensor } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';

const what = process.argv[2] ?? 'train';
const steps = what === 'train' ? 20 : 100_000;
const width = 16;
const rows = 24;
const microbatches = 6;
const lr = 0.05;

/** The part of the model that one stage has; the same numbers wherever it is made. */
function part(stage: number): nn.Module {
  manualSeed(stage);
  return new nn.Sequential(new nn.Linear(width, width), new nn.Tanh()).to('float64');
}

const group = distributed.initProcessGroup();
const last = group.size - 1;
const x = arange(rows * width, { dtype: 'float64' })
  .mul(0.05)
  .cos()
  .reshape([rows, width]);
const y = arange(rows * width, { dtype: 'float64' })
  .mul(0.03)
  .sin()
  .reshape([rows, width]);
const lossFn = (output: Tensor, target: Tensor): Tensor => nn.functional.mseLoss(output, target);

const module = part(group.rank);
const stage = new PipelineStage(module, group.rank, group.size);
const runtime = new PipelineRuntime(stage, '1F1B', { microbatches, lossFn });
const optimizer = new optim.SGD(module.parameters(), { lr });
const whole = new nn.Sequential(...Array.from({ length: group.size }, (_, i) => part(i)));
const plainOptimizer = new optim.SGD(whole.parameters(), { lr });

let worst = 0;
for (let step = 0; step < steps; step++) {
  if (what === 'fail' && step === 2 && group.rank === last) throw new Error(`rank ${last} broke on purpose`);
  scope(() => {
    const losses: Tensor[] = [];
    optimizer.zeroGrad();
    runtime.step(...(group.rank === 0 ? [x] : []), group.rank === last ? { target: y, losses } : {});
    optimizer.step();
    if (group.rank !== last || what !== 'train') return;
    plainOptimizer.zeroGrad();
    const plain = lossFn(whole.forward(x), y);
    plain.backward();
    plainOptimizer.step();
    const mean = losses.reduce((sum, loss) => sum + loss.item(), 0) / losses.length;
    worst = Math.max(worst, Math.abs(mean - plain.item()));
    if (step % 5 === 4)
      console.log(`step ${step + 1}: loss ${mean.toFixed(6)}, plain training ${plain.item().toFixed(6)}`);
  });
  if (what === 'endless') {
    if (step === 5) console.log('under way');
    await sleep(20);
  }
}
if (group.rank === last) {
  console.log(`largest difference to plain training: ${worst}`);
  if (worst > 1e-12) throw new Error(`the losses differ from plain training by ${worst}`);
}
