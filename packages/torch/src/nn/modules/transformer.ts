/** @file Transformer layers, stacks of them, and the whole model. */
import { checkGiven } from '../../base/checks.ts';
import { full, gelu, relu, triu } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { float } from '../../base/float-scalar.ts';
import { readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import { getDefaultDtype } from '../../tensor/dtype.ts';
import { recorder } from '../../tensor/recorder.ts';
import { type Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { additiveMask } from '../functional/attention.ts';
import { xavierUniform_ } from '../init.ts';
import { Module, type TensorModule } from '../module.ts';
import { MultiheadAttention } from './attention.ts';
import { ModuleList } from './containers.ts';
import { Dropout } from './dropout.ts';
import { Linear } from './linear.ts';
import { LayerNorm } from './normalization.ts';

/** 'relu', 'gelu', or a function or module of one tensor. */
export type Activation = 'relu' | 'gelu' | ((input: Tensor) => Tensor) | TensorModule;

/** What the layers of a Transformer can be told. */
export interface TransformerLayerOptions extends FactoryOptions {
  dimFeedforward?: number | undefined;
  dropout?: Real | undefined;
  activation?: Activation | undefined;
  layerNormEps?: Real | undefined;
  batchFirst?: boolean | undefined;
  /** Normalise before rather than after attention and feed-forward. */
  normFirst?: boolean | undefined;
  bias?: boolean | undefined;
}

interface Given extends FactoryOptions {
  dimFeedforward: number;
  dropout: number;
  activation: Activation;
  layerNormEps: number;
  batchFirst: boolean;
  normFirst: boolean;
  bias: boolean;
}

/** The activation is an object here, so that any kind is accepted. */
const defaults: Omit<Given, 'activation'> & { activation: Activation | null } = {
  dimFeedforward: 2048,
  dropout: 0.1,
  activation: null,
  layerNormEps: 1e-5,
  batchFirst: false,
  normFirst: false,
  bias: true,
  ...factory,
};

function activationOf(where: string, given: Activation | null): ((input: Tensor) => Tensor) | TensorModule {
  if (given === null || given === 'relu') return (input) => relu(input);
  if (given === 'gelu') return (input) => gelu(input);
  if (typeof given === 'function' || given instanceof Module) return given;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: activation is 'relu', 'gelu', or a function or module of one tensor, got ${String(given)}`,
  );
}

/** What both kinds of layers have in common. */
abstract class TransformerLayer extends Module {
  selfAttn: MultiheadAttention;
  /** Only decoder layers have it; it is defined here for its place among the others. */
  multiheadAttn: MultiheadAttention | null;
  linear1: Linear;
  dropout: Dropout;
  linear2: Linear;
  norm1: LayerNorm;
  norm2: LayerNorm;
  norm3: LayerNorm | null;
  dropout1: Dropout;
  dropout2: Dropout;
  dropout3: Dropout | null;
  readonly normFirst: boolean;
  activation: ((input: Tensor) => Tensor) | TensorModule;

  constructor(
    where: string,
    sizes: { dModel: number; nhead: number; isDecoder: boolean },
    options: TransformerLayerOptions | undefined,
  ) {
    super();
    const given = readOptions(where, options, defaults);
    const { dModel, nhead, isDecoder } = sizes;
    const { dropout, bias, batchFirst, dimFeedforward, dtype, device } = given;
    const linear = { bias, dtype, device };
    const norm = { eps: given.layerNormEps, ...linear };
    const attention = { dropout, batchFirst, ...linear };
    this.selfAttn = new MultiheadAttention(dModel, nhead, attention);
    this.multiheadAttn = isDecoder ? new MultiheadAttention(dModel, nhead, attention) : null;
    this.linear1 = new Linear(dModel, dimFeedforward, linear);
    this.dropout = new Dropout(dropout);
    this.linear2 = new Linear(dimFeedforward, dModel, linear);
    this.norm1 = new LayerNorm(dModel, norm);
    this.norm2 = new LayerNorm(dModel, norm);
    this.norm3 = isDecoder ? new LayerNorm(dModel, norm) : null;
    this.dropout1 = new Dropout(dropout);
    this.dropout2 = new Dropout(dropout);
    this.dropout3 = isDecoder ? new Dropout(dropout) : null;
    this.normFirst = given.normFirst;
    this.activation = activationOf(where, given.activation);
  }

  protected feedForward(input: Tensor, last: Dropout): Tensor {
    const hidden = this.linear1.forward(input);
    const active = typeof this.activation === 'function' ? this.activation(hidden) : this.activation.forward(hidden);
    return last.forward(this.linear2.forward(this.dropout.forward(active)));
  }

  protected attend(attention: MultiheadAttention, query: Tensor, memory: Tensor, masks: Masks): Tensor {
    return attention.forward(query, memory, memory, {
      attnMask: masks.mask,
      keyPaddingMask: masks.padding,
      isCausal: masks.isCausal ?? false,
      needWeights: false,
    })[0];
  }
}

interface Masks {
  readonly mask: Tensor | null | undefined;
  readonly padding: Tensor | null | undefined;
  readonly isCausal: boolean | null | undefined;
}

/** What a call of an encoder layer can be told. */
export interface EncoderLayerCall {
  srcMask?: Tensor | null | undefined;
  srcKeyPaddingMask?: Tensor | null | undefined;
  isCausal?: boolean | undefined;
}

/** Self-attention and feed-forward. @example new TransformerEncoderLayer(64, 4, { batchFirst: true }) */
export class TransformerEncoderLayer extends TransformerLayer {
  constructor(dModel: number, nhead: number, options?: TransformerLayerOptions) {
    super('TransformerEncoderLayer', { dModel, nhead, isDecoder: false }, options);
  }

  forward(src: Tensor, options?: EncoderLayerCall): Tensor {
    checkOptions('TransformerEncoderLayer.forward', options, ['srcMask', 'srcKeyPaddingMask', 'isCausal']);
    const masks: Masks = { mask: options?.srcMask, padding: options?.srcKeyPaddingMask, isCausal: options?.isCausal };
    const attend = (x: Tensor): Tensor => this.dropout1.forward(this.attend(this.selfAttn, x, x, masks));
    if (this.normFirst) {
      const x = src.add(attend(this.norm1.forward(src)));
      return x.add(this.feedForward(this.norm2.forward(x), this.dropout2));
    }
    const x = this.norm1.forward(src.add(attend(src)));
    return this.norm2.forward(x.add(this.feedForward(x, this.dropout2)));
  }
}

/** What a call of a decoder or of one of its layers can be told. */
export interface DecoderCall {
  tgtMask?: Tensor | null | undefined;
  memoryMask?: Tensor | null | undefined;
  tgtKeyPaddingMask?: Tensor | null | undefined;
  memoryKeyPaddingMask?: Tensor | null | undefined;
  tgtIsCausal?: boolean | null | undefined;
  memoryIsCausal?: boolean | undefined;
}

const decoderCall = [
  'tgtMask',
  'memoryMask',
  'tgtKeyPaddingMask',
  'memoryKeyPaddingMask',
  'tgtIsCausal',
  'memoryIsCausal',
];

/** Self-attention, attention to the encoder's output, and feed-forward. */
export class TransformerDecoderLayer extends TransformerLayer {
  constructor(dModel: number, nhead: number, options?: TransformerLayerOptions) {
    super('TransformerDecoderLayer', { dModel, nhead, isDecoder: true }, options);
  }

  forward(tgt: Tensor, memory: Tensor, options?: DecoderCall): Tensor {
    checkOptions('TransformerDecoderLayer.forward', options, decoderCall);
    const own: Masks = { mask: options?.tgtMask, padding: options?.tgtKeyPaddingMask, isCausal: options?.tgtIsCausal };
    const cross: Masks = {
      mask: options?.memoryMask,
      padding: options?.memoryKeyPaddingMask,
      isCausal: options?.memoryIsCausal,
    };
    const [attention, norm, last] = [this.multiheadAttn!, this.norm3!, this.dropout3!];
    const attend = (x: Tensor): Tensor => this.dropout1.forward(this.attend(this.selfAttn, x, x, own));
    const consult = (x: Tensor): Tensor => this.dropout2.forward(this.attend(attention, x, memory, cross));
    if (this.normFirst) {
      const x = tgt.add(attend(this.norm1.forward(tgt)));
      const y = x.add(consult(this.norm2.forward(x)));
      return y.add(this.feedForward(norm.forward(y), last));
    }
    const x = this.norm1.forward(tgt.add(attend(tgt)));
    const y = this.norm2.forward(x.add(consult(x)));
    return norm.forward(y.add(this.feedForward(y, last)));
  }
}

function clones<T extends Module>(layer: T, count: number): ModuleList<T> {
  checkGiven('a stack of layers', layer instanceof Module, ['the layer', layer], 'a module');
  checkGiven(
    'a stack of layers',
    Number.isSafeInteger(count) && count >= 0 && count < 1 << 20,
    ['the number of layers', count],
    'a whole number',
  );
  return new ModuleList(Array.from({ length: count }, () => layer.clone()));
}

/** Whether a mask is the causal one, where nobody said so. */
function detectCausal(mask: Tensor | null, given: boolean | null | undefined, length: number): boolean {
  if (given !== null && given !== undefined) return given;
  if (mask === null || mask.shape.join() !== `${length},${length}`) return false;
  if (recorder !== null || mask.isMeta) return false; // no values to look at: the mask is used as it is
  return (
    mask
      .eq(squareSubsequentMask(length, { dtype: mask.dtype, device: mask.device }))
      .all()
      .itemValue() === true
  );
}

function squareSubsequentMask(size: number, { dtype, device }: FactoryOptions): Tensor {
  return triu(full([size, size], float(-Infinity), { dtype: dtype ?? getDefaultDtype(), device: device ?? null }), 1);
}

function lengthOf(input: Tensor, batchFirst: boolean): number {
  return input.size(input.dim() === 3 && batchFirst ? 1 : 0);
}

/** What a call of an encoder can be told. */
export interface EncoderCall {
  mask?: Tensor | null | undefined;
  srcKeyPaddingMask?: Tensor | null | undefined;
  isCausal?: boolean | null | undefined;
}

/** What a stack of encoder layers can be told. */
export interface TransformerEncoderOptions {
  /** What normalises the output. */
  norm?: TensorModule | null | undefined;
}

/** A stack of copies of an encoder layer. */
export class TransformerEncoder extends Module {
  layers: ModuleList<TransformerEncoderLayer>;
  readonly numLayers: number;
  norm: TensorModule | null;

  constructor(
    encoderLayer: TransformerEncoderLayer,
    numLayers: number,
    options?: TransformerEncoderOptions | TensorModule | null,
  ) {
    super();
    this.layers = clones(encoderLayer, numLayers);
    this.numLayers = numLayers;
    this.norm = normOf('TransformerEncoder', options);
  }

  forward(src: Tensor, options?: EncoderCall): Tensor {
    checkOptions('TransformerEncoder.forward', options, ['mask', 'srcKeyPaddingMask', 'isCausal']);
    const srcKeyPaddingMask = additiveMask('srcKeyPaddingMask', options?.srcKeyPaddingMask, src.dtype);
    const srcMask = additiveMask('mask', options?.mask, src.dtype);
    const isCausal = detectCausal(srcMask, options?.isCausal, lengthOf(src, this.layers.at(0).selfAttn.batchFirst));
    let output = src;
    for (const layer of this.layers) output = layer.forward(output, { srcMask, srcKeyPaddingMask, isCausal });
    return this.norm === null ? output : this.norm.forward(output);
  }
}

function normOf(
  where: string,
  options: TransformerEncoderOptions | TensorModule | null | undefined,
): TensorModule | null {
  if (options instanceof Module) return options;
  checkOptions(where, options ?? undefined, ['norm']);
  return options?.norm ?? null;
}

/** A stack of copies of a decoder layer. */
export class TransformerDecoder extends Module {
  layers: ModuleList<TransformerDecoderLayer>;
  readonly numLayers: number;
  norm: TensorModule | null;

  constructor(
    decoderLayer: TransformerDecoderLayer,
    numLayers: number,
    options?: TransformerEncoderOptions | TensorModule | null,
  ) {
    super();
    this.layers = clones(decoderLayer, numLayers);
    this.numLayers = numLayers;
    this.norm = normOf('TransformerDecoder', options);
  }

  forward(tgt: Tensor, memory: Tensor, options?: DecoderCall): Tensor {
    checkOptions('TransformerDecoder.forward', options, decoderCall);
    const length = lengthOf(tgt, this.layers.at(0).selfAttn.batchFirst);
    const tgtIsCausal = detectCausal(options?.tgtMask ?? null, options?.tgtIsCausal, length);
    let output = tgt;
    for (const layer of this.layers) output = layer.forward(output, memory, { ...options, tgtIsCausal });
    return this.norm === null ? output : this.norm.forward(output);
  }
}

/** What a Transformer can be told. */
export interface TransformerOptions extends TransformerLayerOptions {
  dModel?: number | undefined;
  nhead?: number | undefined;
  numEncoderLayers?: number | undefined;
  numDecoderLayers?: number | undefined;
  customEncoder?: Module | null | undefined;
  customDecoder?: Module | null | undefined;
}

/** What a call of a Transformer can be told. */
export interface TransformerCall extends DecoderCall {
  srcMask?: Tensor | null | undefined;
  srcKeyPaddingMask?: Tensor | null | undefined;
  srcIsCausal?: boolean | null | undefined;
}

/** Encoder and decoder. @example new Transformer({ dModel: 64, nhead: 4, batchFirst: true }).forward(src, tgt) */
export class Transformer extends Module {
  encoder: TransformerEncoder;
  decoder: TransformerDecoder;
  readonly dModel: number;
  readonly nhead: number;
  readonly batchFirst: boolean;

  constructor(options?: TransformerOptions) {
    super();
    const { dModel, nhead, numEncoderLayers, numDecoderLayers, customEncoder, customDecoder, ...layer } = readOptions(
      'Transformer',
      options,
      {
        dModel: 512,
        nhead: 8,
        numEncoderLayers: 6,
        numDecoderLayers: 6,
        customEncoder: null as Module | null,
        customDecoder: null as Module | null,
        ...defaults,
      },
    );
    const forLayer = { ...layer, activation: layer.activation ?? 'relu' } as const;
    const norm = (): LayerNorm =>
      new LayerNorm(dModel, { eps: layer.layerNormEps, bias: layer.bias, dtype: layer.dtype, device: layer.device });
    this.encoder =
      (customEncoder as TransformerEncoder | null) ??
      new TransformerEncoder(new TransformerEncoderLayer(dModel, nhead, forLayer), numEncoderLayers, norm());
    this.decoder =
      (customDecoder as TransformerDecoder | null) ??
      new TransformerDecoder(new TransformerDecoderLayer(dModel, nhead, forLayer), numDecoderLayers, norm());
    this.dModel = dModel;
    this.nhead = nhead;
    this.batchFirst = layer.batchFirst;
    for (const parameter of this.parameters()) if (parameter.dim() > 1) xavierUniform_(parameter);
  }

  forward(src: Tensor, tgt: Tensor, options?: TransformerCall): Tensor {
    const { srcMask, srcKeyPaddingMask, srcIsCausal, ...rest } = options ?? {};
    checkOptions('Transformer.forward', rest, [...decoderCall, 'srcMask', 'srcKeyPaddingMask', 'srcIsCausal']);
    const batchDim = this.batchFirst ? 0 : 1;
    if (src.dim() === 3 && src.size(batchDim) !== tgt.size(batchDim))
      throw new TorchError(
        'SHAPE',
        `Transformer: src has a batch of ${src.size(batchDim)}, tgt of ${tgt.size(batchDim)}; they must be equal`,
      );
    if (src.size(-1) !== this.dModel || tgt.size(-1) !== this.dModel)
      throw new TorchError(
        'SHAPE',
        `Transformer: the last dimension of src (${src.size(-1)}) and tgt (${tgt.size(-1)}) must be dModel (${this.dModel})`,
      );
    const memory = this.encoder.forward(src, { mask: srcMask, srcKeyPaddingMask, isCausal: srcIsCausal });
    return this.decoder.forward(tgt, memory, rest);
  }

  /** A mask that hides what comes later: minus infinity above the diagonal. */
  static generateSquareSubsequentMask(size: number, options?: FactoryOptions): Tensor {
    checkOptions('generateSquareSubsequentMask', options, ['dtype', 'device']);
    return squareSubsequentMask(size, options ?? {});
  }
}
