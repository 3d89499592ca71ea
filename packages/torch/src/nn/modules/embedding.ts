/** @file Tables of vectors by number: Embedding and EmbeddingBag. */

import { embedding as embeddingOp } from '../../generated/functions.ts';
import { checkTensors } from '../../tensor/check-tensors.ts';
import '../../generated/methods.ts';
import { noGrad } from '../../autograd/modes.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { type Real, realText, repr, toNumber } from '../../base/text.ts';
import { scope } from '../../tensor/scope.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { type BagMode, checkPadding, embedding, embeddingBag } from '../functional/embedding.ts';
import { normal_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, Parameter } from '../parameter.ts';

/** What both tables can be told. */
export interface TableOptions extends FactoryOptions {
  paddingIdx?: number | null | undefined;
  maxNorm?: Real | null | undefined;
  normType?: Real | undefined;
  scaleGradByFreq?: boolean | undefined;
  sparse?: boolean | undefined;
  /** Values to begin with. */
  _weight?: Tensor | null | undefined;
}

/** What Embedding can be told. */
export interface EmbeddingOptions extends TableOptions {
  _freeze?: boolean | undefined;
}

interface Given extends FactoryOptions {
  paddingIdx: number | null;
  maxNorm: Real | null;
  normType: Real | null;
  scaleGradByFreq: boolean;
  sparse: boolean;
  _weight: Tensor | null;
}

const defaults: Given = {
  paddingIdx: null,
  maxNorm: null,
  normType: null,
  scaleGradByFreq: false,
  sparse: false,
  _weight: null,
  ...factory,
};

abstract class Table extends Module {
  readonly numEmbeddings: number;
  readonly embeddingDim: number;
  readonly paddingIdx: number | null;
  readonly maxNorm: Real | null;
  readonly normType: Real;
  readonly scaleGradByFreq: boolean;
  readonly sparse: boolean;
  weight: Parameter;

  constructor(where: string, numEmbeddings: number, embeddingDim: number, given: Given & { _freeze?: boolean }) {
    super();
    checkWhole(`${where}: numEmbeddings`, numEmbeddings);
    checkWhole(`${where}: embeddingDim`, embeddingDim);
    this.numEmbeddings = numEmbeddings;
    this.embeddingDim = embeddingDim;
    this.paddingIdx = checkPadding(where, given.paddingIdx, numEmbeddings);
    this.maxNorm = given.maxNorm;
    this.normType = given.normType ?? 2;
    this.scaleGradByFreq = given.scaleGradByFreq;
    this.sparse = given.sparse;
    const values = given._weight;
    if (values === null) {
      this.weight = emptyParameter([numEmbeddings, embeddingDim], given).requiresGrad_(given._freeze !== true);
      this.resetParameters();
      return;
    }
    if (values.shape.join() !== `${numEmbeddings},${embeddingDim}`) {
      throw new TorchError(
        'SHAPE',
        `${where}: the weight must be [${numEmbeddings}, ${embeddingDim}], got [${values.shape.join(', ')}]`,
      );
    }
    this.weight = new Parameter(values, { requiresGrad: given._freeze !== true });
  }

  /** Draws new initial values; the padding row is zero. */
  resetParameters(): void {
    normal_(this.weight);
    if (this.paddingIdx === null) return;
    noGrad(() => scope(() => void this.weight.select(0, this.paddingIdx!).zero_()));
  }

  protected settings(): {
    paddingIdx: number | null;
    maxNorm: number | null;
    normType: number;
    scaleGradByFreq: boolean;
    sparse: boolean;
  } {
    const { paddingIdx, scaleGradByFreq, sparse } = this;
    return {
      paddingIdx,
      maxNorm: this.maxNorm === null ? null : toNumber(this.maxNorm),
      normType: toNumber(this.normType),
      scaleGradByFreq,
      sparse,
    };
  }
}

/** The rows of a learned table. @example new Embedding(vocabulary, width).forward(tokens) */
export class Embedding extends Table {
  constructor(numEmbeddings: number, embeddingDim: number, options?: EmbeddingOptions) {
    super('Embedding', numEmbeddings, embeddingDim, readOptions('Embedding', options, { ...defaults, _freeze: false }));
  }

  /** A table of given values, frozen unless told otherwise. */
  static fromPretrained(
    values: Tensor,
    options?: Omit<EmbeddingOptions, '_weight' | '_freeze'> & { freeze?: boolean | undefined },
  ): Embedding {
    checkTensors('Embedding.fromPretrained', { values });
    const { freeze = true, ...rest } = options ?? {};
    if (values.dim() !== 2)
      throw new TorchError(
        'SHAPE',
        `Embedding.fromPretrained: the values must have 2 dimensions, these have ${values.dim()}`,
      );
    return new Embedding(values.size(0), values.size(1), { ...rest, _weight: values, _freeze: freeze });
  }

  forward(input: Tensor): Tensor {
    if (this.maxNorm !== null) return embedding(input, this.weight, this.settings());
    return embeddingOp(this.weight, input, this.paddingIdx ?? -1, this.scaleGradByFreq, this.sparse);
  }

  override extraRepr(): string {
    let text = `${this.numEmbeddings}, ${this.embeddingDim}`;
    if (this.paddingIdx !== null) text += `, padding_idx=${this.paddingIdx}`;
    if (this.maxNorm !== null) text += `, max_norm=${realText(this.maxNorm)}`;
    if (toNumber(this.normType) !== 2) text += `, norm_type=${realText(this.normType)}`;
    if (this.scaleGradByFreq) text += ', scale_grad_by_freq=True';
    if (this.sparse) text += ', sparse=True';
    return text;
  }
}

/** What EmbeddingBag can be told. */
export interface EmbeddingBagOptions extends TableOptions {
  mode?: BagMode | undefined;
  includeLastOffset?: boolean | undefined;
}

/** Sums, means or maxima of bags of rows. */
export class EmbeddingBag extends Table {
  readonly mode: BagMode;
  readonly includeLastOffset: boolean;

  constructor(numEmbeddings: number, embeddingDim: number, options?: EmbeddingBagOptions) {
    const given = readOptions('EmbeddingBag', options, {
      ...defaults,
      mode: 'mean' as BagMode,
      includeLastOffset: false,
    });
    super('EmbeddingBag', numEmbeddings, embeddingDim, given);
    this.mode = given.mode;
    this.includeLastOffset = given.includeLastOffset;
  }

  forward(
    input: Tensor,
    offsets?: Tensor | null | { offsets?: Tensor | null | undefined; perSampleWeights?: Tensor | null | undefined },
    perSampleWeights?: Tensor | null,
  ): Tensor {
    const bags =
      offsets === undefined || offsets === null || 'handle' in offsets ? { offsets, perSampleWeights } : offsets;
    return embeddingBag(input, this.weight, {
      ...this.settings(),
      mode: this.mode,
      includeLastOffset: this.includeLastOffset,
      ...bags,
    });
  }

  override extraRepr(): string {
    let text = `${this.numEmbeddings}, ${this.embeddingDim}`;
    if (this.maxNorm !== null) text += `, max_norm=${realText(this.maxNorm)}`;
    if (toNumber(this.normType) !== 2) text += `, norm_type=${realText(this.normType)}`;
    if (this.scaleGradByFreq) text += ', scale_grad_by_freq=True';
    text += `, mode=${repr(this.mode)}`;
    if (this.paddingIdx !== null) text += `, padding_idx=${this.paddingIdx}`;
    return text;
  }
}
