/** @file One step of a recurrent layer: RNNCell, LSTMCell, GRUCell. */
import { gruCell, lstmCell, rnnReluCell, rnnTanhCell, zeros } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { uniform_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';
import type { BiasOptions } from './linear.ts';
import { type Hidden, hiddenOf } from './rnn.ts';

abstract class CellBase extends Module {
  readonly inputSize: number;
  readonly hiddenSize: number;
  readonly hasBias: boolean;
  weightIh: Parameter;
  weightHh: Parameter;
  biasIh: Parameter | null;
  biasHh: Parameter | null;

  constructor(
    where: string,
    inputSize: number,
    hiddenSize: number,
    given: FactoryOptions & { bias: boolean; gates: number },
  ) {
    super();
    checkWhole(`${where}: inputSize`, inputSize);
    checkWhole(`${where}: hiddenSize`, hiddenSize);
    this.inputSize = inputSize;
    this.hiddenSize = hiddenSize;
    this.hasBias = given.bias;
    const size = given.gates * hiddenSize;
    this.weightIh = emptyParameter([size, inputSize], given);
    this.weightHh = emptyParameter([size, hiddenSize], given);
    this.biasIh = given.bias ? emptyParameter([size], given) : null;
    this.biasHh = given.bias ? emptyParameter([size], given) : null;
    this.resetParameters();
  }

  /** Draws new initial values. */
  resetParameters(): void {
    const bound = this.hiddenSize > 0 ? 1 / Math.sqrt(this.hiddenSize) : 0;
    for (const weight of this.parameters()) uniform_(weight, -bound, bound);
  }

  /** The input with a batch dimension, and whether it had one. */
  protected batched(input: Tensor): [Tensor, boolean] {
    const dims = input.dim();
    if (dims !== 1 && dims !== 2)
      throw new TorchError('SHAPE', `${this.getName()}: the input must have 1 or 2 dimensions, this one has ${dims}`);
    return dims === 2 ? [input, true] : [input.unsqueeze(0), false];
  }

  protected state(input: Tensor, given: Tensor | null): Tensor {
    if (given === null) return zeros([input.size(0), this.hiddenSize], { dtype: input.dtype, device: input.device });
    return given.dim() === 1 ? given.unsqueeze(0) : given;
  }

  override extraRepr(): string {
    return `${this.inputSize}, ${this.hiddenSize}${this.hasBias ? '' : ', bias=False'}`;
  }
}

/** One step of an RNN. @example h = cell.forward(x, h) */
export class RNNCell extends CellBase {
  readonly nonlinearity: string;

  constructor(
    inputSize: number,
    hiddenSize: number,
    options?: BiasOptions & { nonlinearity?: 'tanh' | 'relu' | undefined },
  ) {
    const given = readOptions('RNNCell', options, { bias: true, nonlinearity: 'tanh', ...factory });
    if (given.nonlinearity !== 'tanh' && given.nonlinearity !== 'relu')
      throw new TorchError('BAD_ARGUMENT', `RNNCell: nonlinearity is 'tanh' or 'relu', got '${given.nonlinearity}'`);
    super('RNNCell', inputSize, hiddenSize, { ...given, gates: 1 });
    this.nonlinearity = given.nonlinearity;
  }

  forward(given: Tensor, hx?: Hidden<Tensor>): Tensor {
    const [input, isBatched] = this.batched(given);
    const cell = this.nonlinearity === 'tanh' ? rnnTanhCell : rnnReluCell;
    const next = cell(input, this.state(input, hiddenOf(hx)), this.weightIh, this.weightHh, this.biasIh, this.biasHh);
    return isBatched ? next : next.squeeze(0);
  }

  override extraRepr(): string {
    return super.extraRepr() + (this.nonlinearity === 'tanh' ? '' : `, nonlinearity=${this.nonlinearity}`);
  }
}

/** One step of a GRU. */
export class GRUCell extends CellBase {
  constructor(inputSize: number, hiddenSize: number, options?: BiasOptions) {
    super('GRUCell', inputSize, hiddenSize, {
      ...readOptions('GRUCell', options, { bias: true, ...factory }),
      gates: 3,
    });
  }

  forward(given: Tensor, hx?: Hidden<Tensor>): Tensor {
    const [input, isBatched] = this.batched(given);
    const next = gruCell(
      input,
      this.state(input, hiddenOf(hx)),
      this.weightIh,
      this.weightHh,
      this.biasIh,
      this.biasHh,
    );
    return isBatched ? next : next.squeeze(0);
  }
}

/** One step of an LSTM. @example [h, c] = cell.forward(x, [h, c]) */
export class LSTMCell extends CellBase {
  constructor(inputSize: number, hiddenSize: number, options?: BiasOptions) {
    super('LSTMCell', inputSize, hiddenSize, {
      ...readOptions('LSTMCell', options, { bias: true, ...factory }),
      gates: 4,
    });
  }

  forward(given: Tensor, hx?: Hidden<readonly [Tensor, Tensor]>): [Tensor, Tensor] {
    const [input, isBatched] = this.batched(given);
    const states = hiddenOf(hx);
    const h = this.state(input, states?.[0] ?? null);
    const [nextH, nextC] = lstmCell(
      input,
      [h, states === null ? h : this.state(input, states[1])],
      this.weightIh,
      this.weightHh,
      this.biasIh,
      this.biasHh,
    );
    return isBatched ? [nextH, nextC] : [nextH.squeeze(0), nextC.squeeze(0)];
  }
}
