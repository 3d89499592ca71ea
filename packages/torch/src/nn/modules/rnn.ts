/** @file Recurrent layers over sequences: RNN, LSTM, GRU. */
import { gru, lstm, rnnRelu, rnnTanh, zeros } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { isAutocastEnabled } from '../../autograd/autocast.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { floatText, type Real } from '../../base/text.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { uniform_ } from '../init.ts';
import { Module } from '../module.ts';
import { PackedSequence } from '../packed-sequence.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';

/** What recurrent layers can be told. */
export interface RNNOptions extends FactoryOptions {
  numLayers?: number | undefined;
  bias?: boolean | undefined;
  /** The input is [batch, length, features] rather than [length, batch, features]. */
  batchFirst?: boolean | undefined;
  /** Dropout between layers. */
  dropout?: Real | undefined;
  bidirectional?: boolean | undefined;
}

/** A state to begin with. */
export type Hidden<H> = H | null | { hx?: H | null | undefined };

/** The state itself, however it was given. */
export function hiddenOf<H>(given: Hidden<H> | undefined): H | null {
  if (given === undefined || given === null) return null;
  if (given instanceof Tensor || Array.isArray(given)) return given as H;
  return (given as { hx?: H | null }).hx ?? null;
}

interface Given extends FactoryOptions {
  numLayers: number;
  bias: boolean;
  batchFirst: boolean;
  dropout: number;
  bidirectional: boolean;
  nonlinearity?: string;
  projSize?: number;
}

const defaults: Given = { numLayers: 1, bias: true, batchFirst: false, dropout: 0, bidirectional: false, ...factory };

interface Shape {
  readonly inputSize: number;
  readonly hiddenSize: number;
  /** How many times the hidden size a layer computes: 4 in an LSTM. */
  readonly gates: number;
}

/** What all recurrent layers have in common. */
abstract class RNNBase extends Module {
  readonly inputSize: number;
  readonly hiddenSize: number;
  readonly numLayers: number;
  readonly bias: boolean;
  readonly batchFirst: boolean;
  readonly dropout: number;
  readonly bidirectional: boolean;
  readonly projSize: number;
  /** Names of the parameters in the order in which the operators want them. */
  private readonly weightNames: readonly string[];

  constructor(where: string, { inputSize, hiddenSize, gates }: Shape, given: Given) {
    super();
    const projSize = given.projSize ?? 0;
    checkWhole(`${where}: inputSize`, inputSize, 1);
    checkWhole(`${where}: hiddenSize`, hiddenSize, 1);
    checkWhole(`${where}: numLayers`, given.numLayers, 1);
    if (!(given.dropout >= 0 && given.dropout <= 1))
      throw new TorchError('BAD_ARGUMENT', `${where}: dropout must be between 0 and 1, got ${given.dropout}`);
    if (projSize < 0 || projSize >= hiddenSize)
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: projSize (${projSize}) must be smaller than hiddenSize (${hiddenSize})`,
      );
    this.inputSize = inputSize;
    this.hiddenSize = hiddenSize;
    this.numLayers = given.numLayers;
    this.bias = given.bias;
    this.batchFirst = given.batchFirst;
    this.dropout = given.dropout;
    this.bidirectional = given.bidirectional;
    this.projSize = projSize;
    const directions = given.bidirectional ? 2 : 1;
    const names: string[] = [];
    const add = (name: string, shape: number[]): void => {
      names.push(name);
      this.registerParameter(name, emptyParameter(shape, given));
    };
    const outputSize = projSize > 0 ? projSize : hiddenSize;
    const gateSize = gates * hiddenSize;
    for (let layer = 0; layer < given.numLayers; layer++) {
      for (const suffix of directions === 2 ? [`_l${layer}`, `_l${layer}_reverse`] : [`_l${layer}`]) {
        add(`weight_ih${suffix}`, [gateSize, layer === 0 ? inputSize : outputSize * directions]);
        add(`weight_hh${suffix}`, [gateSize, outputSize]);
        if (given.bias) {
          add(`bias_ih${suffix}`, [gateSize]);
          add(`bias_hh${suffix}`, [gateSize]);
        }
        if (projSize > 0) add(`weight_hr${suffix}`, [projSize, hiddenSize]);
      }
    }
    this.weightNames = names;
    this.resetParameters();
  }

  /** Draws new initial values. */
  resetParameters(): void {
    const bound = 1 / Math.sqrt(this.hiddenSize);
    for (const weight of this.weights()) uniform_(weight, -bound, bound);
  }

  protected weights(): Parameter[] {
    return this.weightNames.map((name) => Reflect.get(this, name) as Parameter);
  }

  /** What every operator of recurrent layers takes after the input and the state. */
  protected settings(): [Parameter[], boolean, number, number, boolean, boolean] {
    return [this.weights(), this.bias, this.numLayers, this.dropout, this.training, this.bidirectional];
  }

  /** A state of zeros. */
  protected zeroState(input: Tensor, batch: number, size: number): Tensor {
    return zeros([this.numLayers * (this.bidirectional ? 2 : 1), batch, size], {
      dtype: input.dtype,
      device: input.device,
    });
  }

  protected checkInput(input: Tensor): void {
    const weight = this.weights()[0]!;
    if (input.size(-1) !== this.inputSize)
      throw new TorchError(
        'SHAPE',
        `${this.getName()}: the input's last dimension must be inputSize (${this.inputSize}), got ${input.size(-1)}`,
      );
    if (input.dtype !== weight.dtype && !isAutocastEnabled(input.device.split(':')[0]))
      throw new TorchError(
        'DTYPE',
        `${this.getName()}: the input is ${input.dtype.name}, the weights are ${weight.dtype.name}; convert one of them with to()`,
      );
  }

  protected checkState(state: Tensor, batch: number, size: number): void {
    const wanted = [this.numLayers * (this.bidirectional ? 2 : 1), batch, size];
    if (state.shape.join() !== wanted.join())
      throw new TorchError(
        'SHAPE',
        `${this.getName()}: a state must be [${wanted.join(', ')}], got [${state.shape.join(', ')}]`,
      );
  }

  /** Adds the batch dimension that a single sequence lacks; says how to take it away again. */
  protected batched(input: Tensor): { input: Tensor; batch: number; isBatched: boolean; batchDim: number } {
    const dims = input.dim();
    if (dims !== 2 && dims !== 3)
      throw new TorchError('SHAPE', `${this.getName()}: the input must have 2 or 3 dimensions, this one has ${dims}`);
    const batchDim = this.batchFirst ? 0 : 1;
    const wide = dims === 3 ? input : input.unsqueeze(batchDim);
    this.checkInput(wide);
    return { input: wide, batch: wide.size(batchDim), isBatched: dims === 3, batchDim };
  }

  override extraRepr(): string {
    let text = `${this.inputSize}, ${this.hiddenSize}`;
    if (this.projSize !== 0) text += `, proj_size=${this.projSize}`;
    if (this.numLayers !== 1) text += `, num_layers=${this.numLayers}`;
    if (!this.bias) text += ', bias=False';
    if (this.batchFirst) text += ', batch_first=True';
    if (this.dropout !== 0) text += `, dropout=${floatText(this.dropout)}`;
    if (this.bidirectional) text += ', bidirectional=True';
    return text;
  }
}

type OneStateOp = typeof gru;

/** What layers with one state have in common. */
abstract class OneStateRNN extends RNNBase {
  protected run<I extends Tensor | PackedSequence>(
    op: OneStateOp,
    given: I,
    hx: Hidden<Tensor> | undefined,
  ): [I, Tensor] {
    const state = hiddenOf(hx);
    if (given instanceof PackedSequence) {
      this.checkInput(given.data);
      const batch = given.numSequences;
      const first = state === null ? this.zeroState(given.data, batch, this.hiddenSize) : given.sort(state);
      this.checkState(first, batch, this.hiddenSize);
      const [output, last] = op(given.data, given.batchSizes, first, ...this.settings());
      return [given.withData(output) as I, given.unsort(last)];
    }
    const { input, batch, isBatched, batchDim } = this.batched(given);
    const first =
      state === null ? this.zeroState(input, batch, this.hiddenSize) : isBatched ? state : state.unsqueeze(1);
    this.checkState(first, batch, this.hiddenSize);
    const [output, last] = op(input, first, ...this.settings(), this.batchFirst);
    return (isBatched ? [output, last] : [output.squeeze(batchDim), last.squeeze(1)]) as [I, Tensor];
  }
}

/** Elman's recurrent layers, with tanh or relu. @example const [output, state] = new RNN(8, 16).forward(x) */
export class RNN extends OneStateRNN {
  readonly nonlinearity: string;

  constructor(
    inputSize: number,
    hiddenSize: number,
    options?: RNNOptions & { nonlinearity?: 'tanh' | 'relu' | undefined },
  ) {
    const given = readOptions('RNN', options, { ...defaults, nonlinearity: 'tanh' });
    if (given.nonlinearity !== 'tanh' && given.nonlinearity !== 'relu')
      throw new TorchError('BAD_ARGUMENT', `RNN: nonlinearity is 'tanh' or 'relu', got '${given.nonlinearity}'`);
    super('RNN', { inputSize, hiddenSize, gates: 1 }, given);
    this.nonlinearity = given.nonlinearity;
  }

  forward<I extends Tensor | PackedSequence>(input: I, hx?: Hidden<Tensor>): [I, Tensor] {
    return this.run(this.nonlinearity === 'tanh' ? rnnTanh : rnnRelu, input, hx);
  }
}

/** Gated recurrent units. @example const [output, state] = new GRU(8, 16, { numLayers: 2 }).forward(x) */
export class GRU extends OneStateRNN {
  constructor(inputSize: number, hiddenSize: number, options?: RNNOptions) {
    super('GRU', { inputSize, hiddenSize, gates: 3 }, readOptions('GRU', options, defaults));
  }

  forward<I extends Tensor | PackedSequence>(input: I, hx?: Hidden<Tensor>): [I, Tensor] {
    return this.run(gru, input, hx);
  }
}

/** Long short-term memory. @example const [output, [h, c]] = new LSTM(8, 16).forward(x) */
export class LSTM extends RNNBase {
  constructor(inputSize: number, hiddenSize: number, options?: RNNOptions & { projSize?: number | undefined }) {
    super('LSTM', { inputSize, hiddenSize, gates: 4 }, readOptions('LSTM', options, { ...defaults, projSize: 0 }));
  }

  forward<I extends Tensor | PackedSequence>(given: I, hx?: Hidden<readonly [Tensor, Tensor]>): [I, [Tensor, Tensor]] {
    const states = hiddenOf(hx);
    if (given instanceof PackedSequence) {
      this.checkInput(given.data);
      const first = this.states(
        given.data,
        given.numSequences,
        states === null ? null : [given.sort(states[0]), given.sort(states[1])],
      );
      const [output, h, c] = lstm(given.data, given.batchSizes, first, ...this.settings());
      return [given.withData(output) as I, [given.unsort(h), given.unsort(c)]];
    }
    const { input, batch, isBatched, batchDim } = this.batched(given);
    const wide = states === null || isBatched ? states : ([states[0].unsqueeze(1), states[1].unsqueeze(1)] as const);
    const [output, h, c] = lstm(input, this.states(input, batch, wide), ...this.settings(), this.batchFirst);
    return (isBatched ? [output, [h, c]] : [output.squeeze(batchDim), [h.squeeze(1), c.squeeze(1)]]) as [
      I,
      [Tensor, Tensor],
    ];
  }

  private states(input: Tensor, batch: number, given: readonly [Tensor, Tensor] | null): [Tensor, Tensor] {
    const outputSize = this.projSize > 0 ? this.projSize : this.hiddenSize;
    if (given === null)
      return [this.zeroState(input, batch, outputSize), this.zeroState(input, batch, this.hiddenSize)];
    this.checkState(given[0], batch, outputSize);
    this.checkState(given[1], batch, this.hiddenSize);
    return [given[0], given[1]];
  }
}
