// @ts-check
/** @file The tests that need a GPU, one PASS or FAIL line each: `node tests/gpu/cuda-test.mjs`. Exit code 1 on a FAIL. */
import { strict as assert } from 'node:assert';
import * as torch from '@pipewright/torch';

const { cuda, nn, optim, manualSeed, randn, scope, tensor, zeros } = torch;
let failed = 0;

/** @param {string} name @param {() => unknown} body */
async function check(name, body) {
  try {
    const note = await body();
    console.log(`PASS ${name}${typeof note === 'string' ? ` (${note})` : ''}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${error instanceof Error ? error.stack : String(error)}`);
  }
}

/** @param {torch.Tensor} a @param {torch.Tensor} b */
const distance = (a, b) => a.to('cpu').double().sub(b.to('cpu').double()).abs().max().item();

const device = 'cuda';
/** @param {number} seed */
function net(seed) {
  manualSeed(seed);
  return new nn.Sequential(new nn.Linear(32, 64), new nn.GELU(), new nn.LayerNorm(64), new nn.Linear(64, 8)).to({
    device,
    dtype: torch.float64,
  });
}

await check('device', () => `${cuda.deviceCount()} x ${cuda.getDeviceProperties().name}`);

await check('memory statistics before the first tensor', () => {
  cuda.resetPeakMemoryStats();
  assert.equal(cuda.memoryAllocated(), 0);
});

await check('operators agree with the CPU', () => {
  const a = randn([16, 16], { dtype: torch.float64 });
  const b = a.to(device);
  assert.ok(distance(a.matmul(a).softmax(-1), b.matmul(b).softmax(-1)) < 1e-12);
  assert.equal(b.device, 'cuda:0');
  assert.deepEqual(tensor([1, 2, 3], { device }).add(1).toArray(), [2, 3, 4]);
});

await check('gradients agree with the CPU', () => {
  const gpu = net(0);
  const cpu = net(0).to({ device: 'cpu' });
  const x = randn([4, 32], { dtype: torch.float64 });
  /** @type {torch.Tensor} */ (gpu.forward(x.to(device))).square().sum().backward();
  /** @type {torch.Tensor} */ (cpu.forward(x)).square().sum().backward();
  const worst = Math.max(
    ...gpu
      .parameters()
      .map((p, i) =>
        distance(/** @type {torch.Tensor} */ (p.grad), /** @type {torch.Tensor} */ (cpu.parameters()[i]?.grad)),
      ),
  );
  assert.ok(worst < 1e-9, `difference ${worst}`);
});

await check('hooks and custom functions run during a CUDA backward', () => {
  class Twice extends torch.AutogradFunction {
    /** @param {any} _ctx @param {torch.Tensor} x */
    static forward(_ctx, x) {
      return x.mul(2);
    }
    /** @param {any} _ctx @param {torch.Tensor} g */
    static backward(_ctx, g) {
      return g.mul(2);
    }
  }
  const x = randn([4], { device, requiresGrad: true });
  let seen = 0;
  const y = /** @type {torch.Tensor} */ (Twice.apply(x.mul(3)));
  y.registerHook((/** @type {torch.Tensor} */ g) => {
    seen++;
    return g.mul(10);
  });
  y.sum().backward();
  assert.equal(seen, 1);
  assert.deepEqual(x.grad?.toArray(), [60, 60, 60, 60]);
});

await check('an error in a callback comes out of a CUDA backward', () => {
  const x = randn([4], { device, requiresGrad: true });
  const y = x.mul(3);
  y.registerHook(() => {
    throw new Error('from the hook');
  });
  assert.throws(() => y.sum().backward(), /from the hook/);
});

await check('checkpoint on CUDA', () => {
  const model = net(1);
  const x = randn([4, 32], { dtype: torch.float64, device, requiresGrad: true });
  /** @type {torch.Tensor} */ (model.forward(x)).sum().backward();
  const plain = /** @type {torch.Tensor} */ (x.grad).clone();
  x.grad = null;
  const y = /** @type {torch.Tensor} */ (
    torch.checkpoint((/** @type {torch.Tensor} */ t) => /** @type {torch.Tensor} */ (model.forward(t)), [x])
  );
  y.sum().backward();
  assert.equal(distance(plain, /** @type {any} */ (x.grad)), 0);
});

await check('split backward is exact', () => {
  const model = net(2);
  const x = randn([4, 32], { dtype: torch.float64, device, requiresGrad: true });
  /** @type {torch.Tensor} */ (model.forward(x)).sum().backward();
  const plain = model.parameters().map((p) => /** @type {torch.Tensor} */ (p.grad).clone());
  const plainX = /** @type {torch.Tensor} */ (x.grad).clone();
  model.zeroGrad();
  x.grad = null;
  const out = /** @type {torch.Tensor} */ (model.forward(x)).sum();
  const { inputGrads, weights } = torch.inputBackward({ outputs: [out], inputs: [x] });
  weights.run();
  assert.equal(distance(plainX, /** @type {torch.Tensor} */ (inputGrads[0])), 0);
  model
    .parameters()
    .forEach((p, i) =>
      assert.equal(distance(/** @type {torch.Tensor} */ (plain[i]), /** @type {torch.Tensor} */ (p.grad)), 0),
    );
});

await check('streams and events', () => {
  const side = new cuda.Stream();
  const start = new cuda.Event({ enableTiming: true });
  const end = new cuda.Event({ enableTiming: true });
  const a = randn([2048, 2048], { device });
  side.waitStream(cuda.currentStream());
  const b = cuda.withStream(side, () => {
    start.record();
    const c = a.matmul(a).matmul(a);
    end.record();
    return c;
  });
  cuda.currentStream().waitStream(side);
  end.synchronize();
  assert.ok(side.query() && !side.equals(cuda.currentStream()));
  assert.ok(Number.isFinite(b.sum().item()));
  return `${start.elapsedTime(end).toFixed(2)} ms`;
});

await check('memory statistics', () => {
  cuda.resetPeakMemoryStats();
  const before = cuda.memoryAllocated();
  const x = zeros([1 << 20], { device });
  assert.equal(cuda.memoryAllocated() - before, 4 << 20);
  x.dispose();
  assert.equal(cuda.memoryAllocated(), before);
  assert.ok(cuda.maxMemoryAllocated() >= before + (4 << 20));
  cuda.emptyCache();
});

await check('a captured training step gives the same gradients', () => {
  const model = net(3);
  const x = randn([4, 32], { dtype: torch.float64, device });
  const step = () => {
    model.zeroGrad();
    /** @type {torch.Tensor} */ (model.forward(x)).square().mean().backward();
  };
  const graph = new cuda.CudaGraph();
  graph.capture(() => scope(step));
  const next = randn([4, 32], { dtype: torch.float64, device });
  x.copy_(next);
  graph.replay();
  cuda.synchronize();
  const replayed = model.parameters().map((p) => /** @type {torch.Tensor} */ (p.grad).clone());
  step();
  model
    .parameters()
    .forEach((p, i) =>
      assert.ok(distance(/** @type {torch.Tensor} */ (p.grad), /** @type {torch.Tensor} */ (replayed[i])) === 0),
    );
});

await check('a captured step with AdamW trains', () => {
  const model = net(4);
  const x = randn([4, 32], { dtype: torch.float64, device });
  const optimizer = new optim.AdamW(model.parameters(), { lr: 1e-2 });
  const loss = zeros([], { dtype: torch.float64, device });
  const graph = new cuda.CudaGraph();
  graph.capture(() =>
    scope(() => {
      optimizer.zeroGrad();
      const value = /** @type {torch.Tensor} */ (model.forward(x)).square().mean();
      value.backward();
      optimizer.step();
      loss.copy_(value.detach());
    }),
  );
  graph.replay();
  const first = loss.item();
  for (let i = 0; i < 50; i++) graph.replay();
  assert.ok(loss.item() < first * 0.5, `${first} to ${loss.item()}`);
  return `${first.toFixed(4)} to ${loss.item().toFixed(4)}`;
});

await check('what cannot be captured says so, and the GPU goes on', () => {
  const x = randn([4], { device });
  const graph = new cuda.CudaGraph();
  assert.throws(() => graph.capture(() => x.sum().item(), { warmup: 0 }), /cannot be captured/);
  assert.ok(Number.isFinite(x.sum().item()));
});

await check('a capture that fails keeps no memory, and its graph can capture something else', () => {
  const x = randn([4], { device });
  const graph = new cuda.CudaGraph();
  const reserved = () => {
    cuda.synchronize();
    cuda.emptyCache();
    return cuda.memoryReserved();
  };
  const before = reserved();
  for (let i = 0; i < 3; i++) {
    const side = new cuda.Stream();
    const apart = () => {
      side.waitStream(cuda.currentStream());
      cuda.withStream(side, () => zeros([16 << 20], { device })); // the capture does not wait for this stream
    };
    assert.throws(() => graph.capture(() => scope(apart), { warmup: 0 }), /cannot be captured/);
    const fails = () => {
      zeros([16 << 20], { device });
      throw new Error('of its own');
    };
    assert.throws(() => graph.capture(() => scope(fails), { warmup: 0 }), /of its own/);
  }
  assert.ok(reserved() - before < 32 << 20, `${(reserved() - before) >> 20} MiB are kept`);
  const y = graph.capture(() => x.mul(2), { warmup: 1 });
  graph.replay();
  assert.equal(distance(y, x.mul(2)), 0);
});

await check('NCCL in a group of one', async () => {
  const group = torch.distributed.initProcessGroup({
    backend: 'nccl',
    rank: 0,
    worldSize: 1,
    store: torch.distributed.hashStore('gpu-test'),
  });
  const x = tensor([1, 2, 3], { device, dtype: 'float32' });
  group.allReduce(x);
  assert.deepEqual(x.toArray(), [1, 2, 3]);
  torch.distributed.destroyProcessGroup();
});

console.log(failed === 0 ? 'all CUDA tests passed' : `${failed} CUDA tests failed`);
process.exit(failed === 0 ? 0 : 1);
