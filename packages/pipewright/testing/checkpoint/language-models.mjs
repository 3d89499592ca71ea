// @ts-check
/**
 * @file Stages of a GPT-2 and of a Llama with the parameters and names of Hugging Face's transformers: layers keep their number in the
 * whole model, whichever stage has them.
 */
import { addmm, arange, cat, nn, zeros } from '@pipewright/torch';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @typedef {{ first: number, end: number, layers: number }} Cut layers of the whole model that a stage has */

const { scaledDotProductAttention, gelu, silu } = nn.functional;

/** GPT-2's linear layer: its weight lies transposed. */
class Conv1d extends nn.Module {
  /** @param {number} from @param {number} to */
  constructor(from, to) {
    super();
    this.weight = new nn.Parameter(zeros([from, to]));
    this.bias = new nn.Parameter(zeros([to]));
  }
  /** @param {Tensor} x */
  forward(x) {
    const [rows, columns] = this.weight.shape;
    return addmm(this.bias, x.reshape([-1, /** @type {number} */ (rows)]), this.weight).reshape([
      ...x.shape.slice(0, -1),
      /** @type {number} */ (columns),
    ]);
  }
}

/** A module that only holds others, under exactly their names. */
class Holder extends nn.Module {
  /** @param {Record<string, nn.Module | null>} modules */
  constructor(modules) {
    super();
    for (const [name, module] of Object.entries(modules)) if (module !== null) this.addModule(name, module);
  }
  forward() {
    throw new Error('it only holds modules');
  }
}

/** @param {Tensor} x @param {number} heads */
function splitHeads(x, heads) {
  const [batch, length, width] = /** @type {[number, number, number]} */ (x.shape);
  return x.view([batch, length, heads, width / heads]).transpose(1, 2);
}

/** @param {Tensor} x */
function joinHeads(x) {
  const [batch, heads, length, width] = /** @type {[number, number, number, number]} */ (x.shape);
  return x.transpose(1, 2).reshape([batch, length, heads * width]);
}

class Gpt2Block extends nn.Module {
  /** @param {any} config */
  constructor(config) {
    super();
    const { n_embd: width, n_head: heads, layer_norm_epsilon: eps } = config;
    this.heads = heads;
    this.addModule('ln_1', new nn.LayerNorm(width, { eps }));
    this.addModule('attn', new Holder({ c_attn: new Conv1d(width, 3 * width), c_proj: new Conv1d(width, width) }));
    this.addModule('ln_2', new nn.LayerNorm(width, { eps }));
    this.addModule('mlp', new Holder({ c_fc: new Conv1d(width, 4 * width), c_proj: new Conv1d(4 * width, width) }));
  }
  /** @param {Tensor} x */
  forward(x) {
    const run = (/** @type {string} */ name, /** @type {Tensor} */ input) =>
      /** @type {Tensor} */ (/** @type {any} */ (this.getSubmodule(name)).forward(input));
    const parts = run('attn.c_attn', run('ln_1', x)).chunk(3, -1);
    const [q, k, v] = /** @type {[Tensor, Tensor, Tensor]} */ (parts.map((each) => splitHeads(each, this.heads)));
    const y = x.add(run('attn.c_proj', joinHeads(scaledDotProductAttention(q, k, v, { isCausal: true }))));
    return y.add(run('mlp.c_proj', gelu(run('mlp.c_fc', run('ln_2', y)), { approximate: 'tanh' })));
  }
}

/** Some layers of a GPT-2; the first stage has the embeddings, the last one the norm and the head, which is tied to them. */
export class Gpt2Stage extends nn.Module {
  /** @param {any} config @param {Cut} cut */
  constructor(config, { first, end, layers }) {
    super();
    const { n_embd: width, vocab_size: words, n_positions: length, layer_norm_epsilon: eps } = config;
    const isFirst = first === 0;
    const isLast = end === layers;
    const blocks = new nn.ModuleDict(
      Object.fromEntries(Array.from({ length: end - first }, (_, i) => [String(first + i), new Gpt2Block(config)])),
    );
    this.transformer = new Holder({
      wte: isFirst ? new nn.Embedding(words, width) : null,
      wpe: isFirst ? new nn.Embedding(length, width) : null,
      h: blocks,
      ln_f: isLast ? new nn.LayerNorm(width, { eps }) : null,
    });
    if (isLast) {
      const head = new nn.Linear(width, words, { bias: false });
      if (isFirst) head.weight = /** @type {nn.Embedding} */ (this.transformer.getSubmodule('wte')).weight;
      this.addModule('lm_head', head);
    }
  }
  /** @param {Tensor} x */
  forward(x) {
    const at = (/** @type {string} */ name) => /** @type {any} */ (this.transformer.getSubmodule(name));
    const has = (/** @type {string} */ name) => this.transformer.members().children.some(([key]) => key === name);
    let y = has('wte')
      ? at('wte')
          .forward(x)
          .add(at('wpe').forward(arange(/** @type {number} */ (x.shape[1]))))
      : x;
    for (const block of at('h').children()) y = block.forward(y);
    return has('ln_f') ? /** @type {any} */ (this).lm_head.forward(at('ln_f').forward(y)) : y;
  }
}

class LlamaBlock extends nn.Module {
  /** @param {any} config */
  constructor(config) {
    super();
    const { hidden_size: width, intermediate_size: wide, num_attention_heads: heads, rms_norm_eps: eps } = config;
    this.config = { heads, groups: config.num_key_value_heads, theta: config.rope_parameters.rope_theta };
    const linear = (/** @type {number} */ from, /** @type {number} */ to) => new nn.Linear(from, to, { bias: false });
    const narrow = (width / heads) * config.num_key_value_heads;
    this.addModule(
      'self_attn',
      new Holder({
        q_proj: linear(width, width),
        k_proj: linear(width, narrow),
        v_proj: linear(width, narrow),
        o_proj: linear(width, width),
      }),
    );
    this.addModule(
      'mlp',
      new Holder({ gate_proj: linear(width, wide), up_proj: linear(width, wide), down_proj: linear(wide, width) }),
    );
    this.addModule('input_layernorm', new nn.RMSNorm(width, { eps }));
    this.addModule('post_attention_layernorm', new nn.RMSNorm(width, { eps }));
  }
  /** @param {Tensor} x */
  forward(x) {
    const run = (/** @type {string} */ name, /** @type {Tensor} */ input) =>
      /** @type {Tensor} */ (/** @type {any} */ (this.getSubmodule(name)).forward(input));
    const { heads, groups, theta } = this.config;
    const normal = run('input_layernorm', x);
    const q = rotate(splitHeads(run('self_attn.q_proj', normal), heads), theta);
    const k = rotate(splitHeads(run('self_attn.k_proj', normal), groups), theta);
    const v = splitHeads(run('self_attn.v_proj', normal), groups);
    const each = heads / groups;
    const seen = scaledDotProductAttention(q, k.repeatInterleave(each, 1), v.repeatInterleave(each, 1), {
      isCausal: true,
    });
    const y = x.add(run('self_attn.o_proj', joinHeads(seen)));
    const after = run('post_attention_layernorm', y);
    return y.add(run('mlp.down_proj', silu(run('mlp.gate_proj', after)).mul(run('mlp.up_proj', after))));
  }
}

/** Positions as rotations. @param {Tensor} x @param {number} theta */
function rotate(x, theta) {
  const [, , length, width] = /** @type {[number, number, number, number]} */ (x.shape);
  const half = width / 2;
  const rates = arange(half)
    .to('float32')
    .mul(-Math.log(theta) / half)
    .exp();
  const angles = arange(length).to('float32').unsqueeze(1).mul(rates);
  const both = cat([angles, angles], -1);
  const turned = cat([x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)], -1);
  return x.mul(both.cos()).add(turned.mul(both.sin()));
}

/** Some layers of a Llama. */
export class LlamaStage extends nn.Module {
  /** @param {any} config @param {Cut} cut */
  constructor(config, { first, end, layers }) {
    super();
    const { hidden_size: width, vocab_size: words, rms_norm_eps: eps } = config;
    const isLast = end === layers;
    this.model = new Holder({
      embed_tokens: first === 0 ? new nn.Embedding(words, width) : null,
      layers: new nn.ModuleDict(
        Object.fromEntries(Array.from({ length: end - first }, (_, i) => [String(first + i), new LlamaBlock(config)])),
      ),
      norm: isLast ? new nn.RMSNorm(width, { eps }) : null,
    });
    if (isLast) this.addModule('lm_head', new nn.Linear(width, words, { bias: false }));
  }
  /** @param {Tensor} x */
  forward(x) {
    const at = (/** @type {string} */ name) => /** @type {any} */ (this.model.getSubmodule(name));
    const has = (/** @type {string} */ name) => this.model.members().children.some(([key]) => key === name);
    let y = has('embed_tokens') ? at('embed_tokens').forward(x) : x;
    for (const block of at('layers').children()) y = block.forward(y);
    return has('norm') ? /** @type {any} */ (this).lm_head.forward(at('norm').forward(y)) : y;
  }
}
