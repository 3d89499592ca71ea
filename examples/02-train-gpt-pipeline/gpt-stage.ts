/** @file One stage of the GPT of example 01: some of its blocks, with the embeddings in front or the head behind. */
import { arange, nn, type Tensor } from '@pipewright/torch';
import { Block, type GptConfig } from '../01-train-gpt/gpt.ts';

/** Stage `index` of `count`; every stage has its share of the blocks, or as many as a plan gives it. */
export class GptStage extends nn.Module {
  tokens: nn.Embedding | null;
  positions: nn.Embedding | null;
  blocks: nn.ModuleList<Block>;
  norm: nn.LayerNorm | null;
  head: nn.Linear | null;
  private readonly firstBlock: number;

  constructor(config: GptConfig, index: number, count: number, planned: readonly (readonly string[])[] | null = null) {
    super();
    const { layers, vocabulary, context, width } = config;
    const [from = 0, to = 0] = [index, index + 1].map((i) =>
      planned === null ? Math.round((i * layers) / count) : blocksIn(planned.slice(0, i)),
    );
    const [isFirst, isLast] = [index === 0, index === count - 1];
    this.tokens = isFirst ? new nn.Embedding(vocabulary, width) : null;
    this.positions = isFirst ? new nn.Embedding(context, width) : null;
    this.blocks = new nn.ModuleList(Array.from({ length: to - from }, () => new Block(config)));
    this.norm = isLast ? new nn.LayerNorm(width) : null;
    this.head = isLast ? new nn.Linear(width, vocabulary, { bias: false }) : null;
    this.firstBlock = from;
  }

  /** The names of its blocks in the whole model. */
  get names(): Record<string, string> {
    return Object.fromEntries([...this.blocks].map((_, i) => [`blocks.${i}`, `blocks.${this.firstBlock + i}`]));
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

/** Number of blocks in stages that are given by the names of their layers: `blocks.3`. */
function blocksIn(stages: readonly (readonly string[])[]): number {
  return stages.flat().filter((name) => /^blocks\.\d+$/.test(name)).length;
}
