/** @file Attention of several heads as a module. */
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { multiHeadAttentionForward } from '../functional/attention.ts';
import { constant_, xavierNormal_, xavierUniform_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';
import { Linear } from './linear.ts';

/** A Linear by the name under which PyTorch prints the output projection of an attention. */
export class NonDynamicallyQuantizableLinear extends Linear {}

/** What MultiheadAttention can be told. */
export interface MultiheadAttentionOptions extends FactoryOptions {
  dropout?: Real | undefined;
  bias?: boolean | undefined;
  /** Adds a learned key and value. */
  addBiasKv?: boolean | undefined;
  /** Adds a key and value of zeros. */
  addZeroAttn?: boolean | undefined;
  /** Widths of keys and values, where they differ from the queries'. */
  kdim?: number | null | undefined;
  vdim?: number | null | undefined;
  /** Inputs are [batch, length, width] rather than [length, batch, width]. */
  batchFirst?: boolean | undefined;
}

/** What a call of an attention can be told. */
export interface AttentionCallOptions {
  /** Keys that are left out: true, or what is added to the scores. */
  keyPaddingMask?: Tensor | null | undefined;
  needWeights?: boolean | undefined;
  /** Pairs that are left out: true, or what is added to the scores. */
  attnMask?: Tensor | null | undefined;
  averageAttnWeights?: boolean | undefined;
  isCausal?: boolean | undefined;
}

const callOptions = ['keyPaddingMask', 'needWeights', 'attnMask', 'averageAttnWeights', 'isCausal'];

/** Attention of several heads. @example const [output, weights] = new MultiheadAttention(64, 4).forward(x, x, x) */
export class MultiheadAttention extends Module {
  readonly embedDim: number;
  readonly numHeads: number;
  readonly kdim: number;
  readonly vdim: number;
  readonly dropout: number;
  readonly batchFirst: boolean;
  readonly addZeroAttn: boolean;
  qProjWeight: Parameter | null;
  kProjWeight: Parameter | null;
  vProjWeight: Parameter | null;
  inProjWeight: Parameter | null;
  inProjBias: Parameter | null;
  outProj: NonDynamicallyQuantizableLinear;
  biasK: Parameter | null;
  biasV: Parameter | null;

  constructor(embedDim: number, numHeads: number, options?: MultiheadAttentionOptions) {
    super();
    checkWhole('MultiheadAttention: embedDim', embedDim, 1);
    checkWhole('MultiheadAttention: numHeads', numHeads, 1);
    if (embedDim % numHeads !== 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `MultiheadAttention: embedDim (${embedDim}) must be a multiple of numHeads (${numHeads})`,
      );
    const given = readOptions('MultiheadAttention', options, {
      dropout: 0,
      bias: true,
      addBiasKv: false,
      addZeroAttn: false,
      kdim: null as number | null,
      vdim: null as number | null,
      batchFirst: false,
      ...factory,
    });
    this.embedDim = embedDim;
    this.numHeads = numHeads;
    this.kdim = given.kdim ?? embedDim;
    this.vdim = given.vdim ?? embedDim;
    this.dropout = given.dropout;
    this.batchFirst = given.batchFirst;
    this.addZeroAttn = given.addZeroAttn;
    const isSame = this.kdim === embedDim && this.vdim === embedDim;
    const make = (when: boolean, ...shape: number[]): Parameter | null => (when ? emptyParameter(shape, given) : null);
    this.qProjWeight = make(!isSame, embedDim, embedDim);
    this.kProjWeight = make(!isSame, embedDim, this.kdim);
    this.vProjWeight = make(!isSame, embedDim, this.vdim);
    this.inProjWeight = make(isSame, 3 * embedDim, embedDim);
    this.inProjBias = make(given.bias, 3 * embedDim);
    this.outProj = new NonDynamicallyQuantizableLinear(embedDim, embedDim, {
      bias: given.bias,
      dtype: given.dtype,
      device: given.device,
    });
    this.biasK = make(given.addBiasKv, 1, 1, embedDim);
    this.biasV = make(given.addBiasKv, 1, 1, embedDim);
    this.resetParameters();
  }

  /** Draws new initial values, except for the output projection's weight. */
  resetParameters(): void {
    for (const weight of [this.inProjWeight, this.qProjWeight, this.kProjWeight, this.vProjWeight])
      if (weight !== null) xavierUniform_(weight);
    if (this.inProjBias !== null) {
      constant_(this.inProjBias, 0);
      constant_(this.outProj.bias!, 0);
    }
    if (this.biasK !== null) xavierNormal_(this.biasK);
    if (this.biasV !== null) xavierNormal_(this.biasV);
  }

  /** The output, and the weights of attention unless `needWeights` is false. */
  forward(query: Tensor, key: Tensor, value: Tensor, options?: AttentionCallOptions): [Tensor, Tensor | null] {
    checkOptions('MultiheadAttention.forward', options, callOptions);
    const flips = this.batchFirst && query.dim() === 3;
    const q = flips ? query.transpose(0, 1) : query;
    const k = key === query ? q : flips ? key.transpose(0, 1) : key;
    const v = value === key ? k : flips ? value.transpose(0, 1) : value;
    const {
      inProjWeight,
      inProjBias,
      qProjWeight,
      kProjWeight,
      vProjWeight,
      biasK,
      biasV,
      numHeads,
      addZeroAttn,
      training,
    } = this;
    const [output, weights] = multiHeadAttentionForward(q, k, v, {
      ...options,
      inProjWeight,
      inProjBias,
      qProjWeight,
      kProjWeight,
      vProjWeight,
      biasK,
      biasV,
      outProjWeight: this.outProj.weight,
      outProjBias: this.outProj.bias,
      numHeads,
      addZeroAttn,
      dropoutP: this.dropout,
      training,
    });
    return [flips ? output.transpose(0, 1) : output, weights];
  }
}
