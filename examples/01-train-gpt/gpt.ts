/** @file A small GPT: token and position embeddings, blocks of attention and MLP, a head. */
import { arange, nn, type Tensor } from '@pipewright/torch';

export interface GptConfig {
  readonly vocabulary: number;
  readonly context: number;
  readonly layers: number;
  readonly heads: number;
  readonly width: number;
  readonly dropout: number;
}

/** One block: attention over what came before, then an MLP, each added to its input. */
export class Block extends nn.Module {
  ln1: nn.LayerNorm;
  qkv: nn.Linear;
  proj: nn.Linear;
  ln2: nn.LayerNorm;
  fc: nn.Linear;
  out: nn.Linear;
  dropout: nn.Dropout;
  readonly heads: number;

  constructor({ width, heads, dropout }: GptConfig) {
    super();
    this.heads = heads;
    this.ln1 = new nn.LayerNorm(width);
    this.qkv = new nn.Linear(width, 3 * width);
    this.proj = new nn.Linear(width, width);
    this.ln2 = new nn.LayerNorm(width);
    this.fc = new nn.Linear(width, 4 * width);
    this.out = new nn.Linear(4 * width, width);
    this.dropout = new nn.Dropout({ p: dropout });
  }

  forward(x: Tensor): Tensor {
    const [batch, time, width] = [x.size(0), x.size(1), x.size(2)];
    const parts = this.qkv.forward(this.ln1.forward(x)).split(width, 2);
    const [q, k, v] = three(
      parts.map((part) => part.view([batch, time, this.heads, width / this.heads]).transpose(1, 2)),
    );
    const seen = nn.functional.scaledDotProductAttention(q, k, v, { isCausal: true });
    const attended = this.proj.forward(seen.transpose(1, 2).reshape([batch, time, width]));
    const y = x.add(this.dropout.forward(attended));
    const thought = this.out.forward(nn.functional.gelu(this.fc.forward(this.ln2.forward(y))));
    return y.add(this.dropout.forward(thought));
  }
}

/** Predicts the next token at every position. */
export class Gpt extends nn.Module {
  tokens: nn.Embedding;
  positions: nn.Embedding;
  blocks: nn.ModuleList<Block>;
  norm: nn.LayerNorm;
  head: nn.Linear;
  readonly config: GptConfig;

  constructor(config: GptConfig) {
    super();
    this.config = config;
    this.tokens = new nn.Embedding(config.vocabulary, config.width);
    this.positions = new nn.Embedding(config.context, config.width);
    this.blocks = new nn.ModuleList(Array.from({ length: config.layers }, () => new Block(config)));
    this.norm = new nn.LayerNorm(config.width);
    this.head = new nn.Linear(config.width, config.vocabulary, { bias: false });
  }

  forward(ids: Tensor): Tensor {
    const places = arange(ids.size(1), { device: ids.device });
    let x = this.tokens.forward(ids).add(this.positions.forward(places));
    for (const block of this.blocks) x = block.forward(x);
    return this.head.forward(this.norm.forward(x));
  }
}

/** The parts of a split into three. */
function three([first, second, third]: readonly Tensor[]): [Tensor, Tensor, Tensor] {
  if (first === undefined || second === undefined || third === undefined)
    throw new Error('there are fewer than three parts');
  return [first, second, third];
}
