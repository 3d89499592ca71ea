/**
 * @file The memory of a plain training loop with and without scopes: an MLP of two hidden layers, 512 wide, batches of 256,
 * AdamW. Run: npm run build && node bench/engine/scopes.mjs [STEPS]
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const [first, second] = process.argv.slice(2);
if (first === 'scoped' || first === 'plain') await train(first, Number(second));
else
  for (const way of ['scoped', 'plain']) {
    const args = [fileURLToPath(import.meta.url), way, first ?? '1000'];
    const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(`bench/engine/scopes.mjs: the ${way} loop failed\n${stderr}`);
    console.log(`${way}: ${stdout.trim()}`);
    if (stderr !== '') console.log(stderr.trim());
  }

/**
 * One loop in a process of its own; prints its last loss and the most memory it held.
 * @param {'scoped' | 'plain'} way @param {number} steps
 */
async function train(way, steps) {
  const { manualSeed, nn, optim, randn, scope } = await import('@pipewright/torch');
  manualSeed(1);
  const model = new nn.Sequential(
    new nn.Linear(512, 512),
    new nn.ReLU(),
    new nn.Linear(512, 512),
    new nn.ReLU(),
    new nn.Linear(512, 512),
  );
  const optimizer = new optim.AdamW(model.parameters(), { lr: 1e-3 });
  const [x, y] = [randn([256, 512]), randn([256, 512])];
  const step = () => {
    optimizer.zeroGrad();
    const loss = nn.functional.mseLoss(model.forward(x), y);
    loss.backward();
    optimizer.step();
    return loss.item();
  };
  let last = 0;
  for (let i = 0; i < steps; i++) last = way === 'scoped' ? scope(step) : step();
  console.log(`${(process.resourceUsage().maxRSS / 1024).toFixed(0)} MB at most, ${steps} steps, last loss ${last}`);
}
