/** @file A first program: three ranks learn a line. Run: npx pipewright run -n 3 train.ts */
import { distributed, manualSeed, nn, optim, randn, scope, stack, type Tensor } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';

const STEPS = 60;
const group = distributed.initProcessGroup();

function layers(rank: number): nn.Module {
  manualSeed(7 + rank);
  if (rank === 0) return new nn.Sequential(new nn.Linear(4, 16), new nn.Tanh());
  if (rank === 1) return new nn.Sequential(new nn.Linear(16, 16), new nn.Tanh());
  return new nn.Linear(16, 1);
}

const lossFn = (output: Tensor, target: Tensor): Tensor => output.sub(target).square().mean();

const stage = new PipelineStage(layers(group.rank), group.rank, group.size);
const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 6, lossFn });
const optimizer = new optim.Adam(stage.module.parameters(), { lr: 0.02 });

manualSeed(1);
const history: number[] = [];
for (let step = 0; step < STEPS; step++) {
  scope(() => {
    const input = randn([24, 4]);
    const target = input.sum([1], true);
    const losses: Tensor[] = [];
    optimizer.zeroGrad();
    runtime.step(input, { target, losses });
    optimizer.step();
    if (stage.isLast) history.push(stack(losses).mean().item());
  });
}
if (stage.isLast) console.log(`first ${history[0]?.toFixed(6)} last ${history.at(-1)?.toFixed(6)}`);
distributed.destroyProcessGroup();
