/** @file One stage of the GPT of example 01: some of its blocks, with the embeddings in front or the head behind. */
import { arange, nn, type Tensor } from '@pipewright/torch';
import { type Block, Gpt, type GptConfig } from '../01-train-gpt/gpt.ts';

/** Stage `index` of `count`; every stage has its share of the blocks. */
export class GptStage extends nn.Module {
  tokens: nn.Embedding | null;
  positions: nn.Embedding | null;
  blocks: nn.ModuleList<Block>;
  norm: nn.LayerNorm | null;
  head: nn.Linear | null;

  constructor(config: GptConfig, index: number, count: number) {
    super();
    const whole = new Gpt(config); // the same on every rank after the same seed; we keep our part
    const [from, to] = [index, index + 1].map((i) => Math.round((i * config.layers) / count));
    this.tokens = index === 0 ? whole.tokens : null;
    this.positions = index === 0 ? whole.positions : null;
    this.blocks = new nn.ModuleList([...whole.blocks].slice(from, to));
    this.norm = index === count - 1 ? whole.norm : null;
    this.head = index === count - 1 ? whole.head : null;
    const kept = new Set(this.parameters());
    for (const parameter of whole.parameters()) if (!kept.has(parameter)) parameter.dispose();
  }

  /** Takes characters on the first stage and gives logits on the last; between stages, one vector per character. */
  forward(input: Tensor): Tensor {
    let x = input;
    if (this.tokens !== null && this.positions !== null) {
      const places = arange(input.size(1), { device: input.device });
      x = this.tokens.forward(input).add(this.positions.forward(places));
    }
    for (const block of this.blocks) x = block.forward(x);
    return this.norm === null || this.head === null ? x : this.head.forward(this.norm.forward(x));
  }
}
