// @ts-check
/** @file The models of bench/plan.mjs. */
import { arange, nn, randint, randn } from '@pipewright/torch';
import { loadPt2, traceModule } from 'pipewright';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {import('pipewright').GraphProgram} GraphProgram */
/** @typedef {{ program(rows: number): GraphProgram, args(rows: number): Tensor[], target(rows: number): Tensor | undefined, lossFn: ((output: any, target: any) => Tensor), batch: number }} Model */

class Block extends nn.Module {
  /** @param {number} width @param {number} heads */
  constructor(width, heads) {
    super();
    this.heads = heads;
    this.norm1 = new nn.LayerNorm(width);
    this.qkv = new nn.Linear(width, 3 * width);
    this.out = new nn.Linear(width, width);
    this.norm2 = new nn.LayerNorm(width);
    this.up = new nn.Linear(width, 4 * width);
    this.down = new nn.Linear(4 * width, width);
  }

  /** @param {Tensor} x */
  forward(x) {
    const [rows, length, width] = /** @type {[number, number, number]} */ (x.shape);
    const parts = this.qkv.forward(this.norm1.forward(x)).chunk(3, -1);
    const [q, k, v] = parts.map((part) => part.reshape([rows, length, this.heads, width / this.heads]).transpose(1, 2));
    const mixed = nn.functional.scaledDotProductAttention(
      /** @type {Tensor} */ (q),
      /** @type {Tensor} */ (k),
      /** @type {Tensor} */ (v),
      { isCausal: true },
    );
    const y = x.add(this.out.forward(mixed.transpose(1, 2).reshape([rows, length, width])));
    return y.add(this.down.forward(nn.functional.gelu(this.up.forward(this.norm2.forward(y)))));
  }
}

class Gpt extends nn.Module {
  /** @param {number} layers @param {number} width @param {number} words */
  constructor(layers, width, words) {
    super();
    this.tokens = new nn.Embedding(words, width);
    this.places = new nn.Embedding(256, width);
    this.blocks = new nn.ModuleList(Array.from({ length: layers }, () => new Block(width, 4)));
    this.norm = new nn.LayerNorm(width);
    this.head = new nn.Linear(width, words);
  }

  /** @param {Tensor} ids */
  forward(ids) {
    let x = this.tokens
      .forward(ids)
      .add(this.places.forward(arange(/** @type {number} */ (ids.shape[1]), { device: ids.device })));
    for (const block of this.blocks) x = block.forward(x);
    return this.head.forward(this.norm.forward(x));
  }
}

/** Convolutions down and up again, with what was on the way down added on the way up. */
class UNet extends nn.Module {
  /** @param {number} width */
  constructor(width) {
    super();
    const conv = (/** @type {number} */ from, /** @type {number} */ to) =>
      new nn.Sequential(
        new nn.Conv2d(from, to, 3, { padding: 1 }),
        new nn.ReLU(),
        new nn.Conv2d(to, to, 3, { padding: 1 }),
        new nn.ReLU(),
      );
    this.down = new nn.ModuleList([conv(3, width), conv(width, 2 * width), conv(2 * width, 4 * width)]);
    this.up = new nn.ModuleList([conv(4 * width, 2 * width), conv(2 * width, width), conv(width, 3)]);
  }

  /** @param {Tensor} x */
  forward(x) {
    /** @type {Tensor[]} */
    const seen = [];
    let y = x;
    for (const layer of this.down) {
      y = layer.forward(y);
      seen.push(y);
      y = nn.functional.maxPool2d(y, 2);
    }
    for (const layer of this.up) {
      y = nn.functional.interpolate(y, { scaleFactor: 2 }).add(/** @type {Tensor} */ (seen.pop()));
      y = layer.forward(y);
    }
    return y;
  }
}

/** Linear layers of given widths. */
class Mlp extends nn.Module {
  /** @param {readonly number[]} widths */
  constructor(widths) {
    super();
    this.layers = new nn.ModuleList(
      widths
        .slice(1)
        .map((width, i) => new nn.Sequential(new nn.Linear(/** @type {number} */ (widths[i]), width), new nn.ReLU())),
    );
  }

  /** @param {Tensor} x */
  forward(x) {
    let y = x;
    for (const layer of this.layers) y = layer.forward(y);
    return y;
  }
}

/** @type {(output: Tensor, target: Tensor) => Tensor} */
const meanSquare = (output, target) => output.sub(target).square().mean();
/** @type {(output: Tensor, target: Tensor) => Tensor} */
const crossEntropy = (output, target) => nn.functional.crossEntropy(output.flatten(0, 1), target.flatten());

/** @typedef {'cpu' | 'cuda'} Device */

/** @param {Device} device @param {number} layers @param {number} width @param {number} length @returns {Model} */
function gpt(device, layers, width, length) {
  const model = new Gpt(layers, width, 512).to({ device });
  const ids = (/** @type {number} */ rows) => randint(0, 512, [rows, length], { device });
  return {
    program: (rows) => traceModule(model, [ids(rows)]),
    args: (rows) => [ids(rows)],
    target: ids,
    lossFn: crossEntropy,
    batch: 16,
  };
}

/** @param {Device} device @param {readonly number[]} widths @param {number} batch @returns {Model} */
function mlp(device, widths, batch) {
  const model = new Mlp(widths).to({ device });
  const args = (/** @type {number} */ rows) => [randn([rows, /** @type {number} */ (widths[0])], { device })];
  return {
    program: (rows) => traceModule(model, args(rows)),
    args,
    target: (rows) => randn([rows, /** @type {number} */ (widths.at(-1))], { device }),
    lossFn: meanSquare,
    batch,
  };
}

/** @param {Device} device @returns {Model} */
function unet(device) {
  const model = new UNet(24).to({ device });
  const args = (/** @type {number} */ rows) => [randn([rows, 3, 64, 64], { device })];
  return {
    program: (rows) => traceModule(model, args(rows)),
    args,
    target: (rows) => randn([rows, 3, 64, 64], { device }),
    lossFn: meanSquare,
    batch: 16,
  };
}

/** @param {Device} device @returns {Model} */
function llama(device) {
  const module = loadPt2(new URL('../testdata/models/llama_dyn.pt2', import.meta.url).pathname).to({ device });
  const all = { removeDuplicate: false };
  /** @type {[string, Tensor][]} */
  const entries = [...module.namedParameters(all), ...module.namedBuffers(all)];
  const program = { graph: module.graph, state: new Map(entries) };
  const length = 12;
  return {
    program: () => program,
    args: (rows) => [randint(0, 64, [rows, length], { device })],
    target: () => undefined,
    lossFn: (output) => (Array.isArray(output) ? output[0] : (output.logits ?? output)).float().square().mean(),
    batch: 512,
  };
}

const even = Array.from({ length: 13 }, () => 512);
/** @type {Record<string, (device: Device) => Model>} */
export const models = {
  'GPT small': (device) => gpt(device, 6, 128, 64),
  'GPT medium': (device) => gpt(device, 8, 256, 128),
  'U-Net': unet,
  'Llama .pt2': llama,
  'MLP, growing': (device) => mlp(device, [128, 256, 256, 384, 384, 512, 512, 768, 768, 1024, 1024, 1024], 512),
  'MLP, even': (device) => mlp(device, even, 512),
};
/** Most of the work is in the last layers. @param {Device} device */
export const unbalanced = (device) =>
  mlp(device, [...Array.from({ length: 9 }, () => 256), 1024, 1024, 1024, 1024], 512);
