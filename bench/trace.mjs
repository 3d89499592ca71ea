// @ts-check
/**
 * @file What tracing and splitting cost: `node bench/trace.mjs`. A GPT of 12 layers on meta tensors, in a fresh process
 * and warm. --layers 12, --width 768, --rounds 10.
 */
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: {
    layers: { type: 'string', default: '12' },
    width: { type: 'string', default: '768' },
    rounds: { type: 'string', default: '10' },
  },
});
const layers = Number(flags.layers);
const width = Number(flags.width);

const { arange, int64, nn, zeros } = await import('@pipewright/torch');
const { pipeline, traceModule } = await import('pipewright');
const meta = { device: 'meta' };

class Attention extends nn.Module {
  qkv = new nn.Linear(width, 3 * width, meta);
  out = new nn.Linear(width, width, meta);
  drop = new nn.Dropout(0.1);

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    const [b, t, c] = /** @type {[number, number, number]} */ (x.shape);
    const parts = this.qkv
      .forward(x)
      .split(c, -1)
      .map((part) => part.view(b, t, 12, c / 12).transpose(1, 2));
    const [q, k, v] = /** @type {import('@pipewright/torch').Tensor[]} */ (parts);
    const scores = /** @type {typeof x} */ (q)
      .matmul(/** @type {typeof x} */ (k).transpose(-1, -2))
      .mul(1 / Math.sqrt(c / 12));
    const future = arange(t).unsqueeze(1).lt(arange(t));
    const mixed = scores
      .maskedFill(future, -Infinity)
      .softmax(-1)
      .matmul(/** @type {typeof x} */ (v));
    return this.drop.forward(this.out.forward(mixed.transpose(1, 2).reshape(b, t, c)));
  }
}

class Block extends nn.Module {
  norm1 = new nn.LayerNorm(width, meta);
  attention = new Attention();
  norm2 = new nn.LayerNorm(width, meta);
  up = new nn.Linear(width, 4 * width, meta);
  down = new nn.Linear(4 * width, width, meta);

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    const y = x.add(this.attention.forward(this.norm1.forward(x)));
    return y.add(this.down.forward(this.up.forward(this.norm2.forward(y)).gelu()));
  }
}

class Gpt extends nn.Module {
  tokens = new nn.Embedding(50257, width, meta);
  places = new nn.Embedding(1024, width, meta);
  blocks = new nn.ModuleList(Array.from({ length: layers }, () => new Block()));
  norm = new nn.LayerNorm(width, meta);
  head = new nn.Linear(width, 50257, { bias: false, ...meta });

  /** @param {import('@pipewright/torch').Tensor} ids */
  forward(ids) {
    let x = this.tokens.forward(ids).add(this.places.forward(arange(ids.size(1))));
    for (const block of this.blocks) x = block.forward(x);
    return this.head.forward(this.norm.forward(x));
  }
}

const model = new Gpt();
const ids = zeros([8, 256], { dtype: int64, device: 'meta' });

/** Milliseconds of processor time of a call, all threads. @template T @param {() => T} body @returns {[number, T]} */
function timed(body) {
  const before = process.cpuUsage();
  const result = body();
  const { user, system } = process.cpuUsage(before);
  return [(user + system) / 1000, result];
}

const [cold, program] = timed(() => traceModule(model, [ids]));
if (program.fixedBecause !== null) throw new Error(program.fixedBecause);
const warm = Math.min(...Array.from({ length: Number(flags.rounds) }, () => timed(() => traceModule(model, [ids]))[0]));
const [split, pipe] = timed(() => pipeline(program, { stages: 4 }));
const calls = program.graph.nodes.filter((node) => node.kind === 'call').length;
console.log(`${layers} layers, ${calls} calls: traced in ${cold.toFixed(0)} ms, again in ${warm.toFixed(0)} ms`);
console.log(`split into ${pipe.numStages} stages in ${split.toFixed(0)} ms`);
