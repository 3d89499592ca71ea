/** @file Parameters by position and by name: ParameterList, ParameterDict. */
import { checkIterable, checkObject, checkText, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { type Members, Module } from '../module.ts';
import { Parameter } from '../parameter.ts';

function check(where: string, value: Tensor): Parameter {
  if (value instanceof Parameter) return value;
  if (value instanceof Tensor) return new Parameter(value);
  throw new TorchError('BAD_ARGUMENT', `${where} holds parameters, got ${value === null ? 'null' : typeof value}`);
}

function line(name: string, parameter: Parameter, type: string): string {
  const device = parameter.isCuda ? ` (${parameter.device})` : '';
  return `  (${name}): Parameter containing: [${type} of size ${parameter.shape.join('x')}${device}]`;
}

/** A list of parameters; plain tensors become parameters. @example scales = new ParameterList([ones([3]), ones([4])]) */
export class ParameterList extends Module {
  private readonly items: Parameter[];

  constructor(values: Iterable<Tensor> = []) {
    super();
    checkIterable('ParameterList', 'the argument', values, 'an array of tensors');
    this.items = Array.from(values, (value) => check('ParameterList', value));
  }

  override members(): Members {
    return { ...super.members(), parameters: this.items.map((item, i) => [String(i), item]) };
  }

  /** A list has no forward of its own. */
  forward(): never {
    throw new TorchError('NOT_CALLABLE', 'ParameterList: a list of parameters computes nothing by itself');
  }

  /** Number of parameters. */
  get length(): number {
    return this.items.length;
  }

  /** The parameter at a position; negative ones count from the end. */
  at(index: number): Parameter {
    const found = this.items.at(index);
    if (found === undefined)
      throw new TorchError('INDEX', `ParameterList: there is no parameter ${index}: it has ${this.length}`);
    return found;
  }

  /** Replaces the parameter at a position. */
  set(index: number, value: Tensor): this {
    const place = this.items.indexOf(this.at(index));
    this.items[place] = check('ParameterList', value);
    return this;
  }

  /** Adds a parameter at the end. */
  append(value: Tensor): this {
    this.items.push(check('ParameterList', value));
    return this;
  }

  /** Adds parameters at the end. */
  extend(values: Iterable<Tensor>): this {
    for (const value of values) this.append(value);
    return this;
  }

  [Symbol.iterator](): IterableIterator<Parameter> {
    return this.items[Symbol.iterator]();
  }

  override extraRepr(): string {
    return this.items.map((item, i) => line(String(i), item, item.dtype.toString())).join('\n');
  }
}

/** Parameters by name; plain tensors become parameters. */
export class ParameterDict extends Module {
  private readonly items = new Map<string, Parameter>();

  constructor(values: Readonly<Record<string, Tensor>> | Iterable<readonly [string, Tensor]> = {}) {
    super();
    this.update(values);
  }

  override members(): Members {
    return { ...super.members(), parameters: [...this.items] };
  }

  /** A dictionary has no forward of its own. */
  forward(): never {
    throw new TorchError('NOT_CALLABLE', 'ParameterDict: parameters by name compute nothing by themselves');
  }

  /** Number of parameters. */
  get size(): number {
    return this.items.size;
  }

  /** The parameter of that name. */
  get(name: string): Parameter {
    const found = this.items.get(name);
    if (found === undefined)
      throw new TorchError(
        'NOT_FOUND',
        `ParameterDict: there is no parameter ${show(name)}; there are ${[...this.items.keys()].join(', ')}`,
      );
    return found;
  }

  has(name: string): boolean {
    return this.items.has(name);
  }

  /** Adds or replaces a parameter. */
  set(name: string, value: Tensor): this {
    checkText('ParameterDict', 'the name', name);
    if (name === '' || name.includes('.'))
      throw new TorchError(
        'BAD_ARGUMENT',
        `ParameterDict: the name '${name}' must not be empty and must not contain '.'`,
      );
    this.items.set(name, check('ParameterDict', value));
    return this;
  }

  /** Adds or replaces parameters. */
  update(values: Readonly<Record<string, Tensor>> | Iterable<readonly [string, Tensor]>): this {
    checkObject('ParameterDict', 'the argument', values, 'parameters by name');
    const entries =
      Symbol.iterator in values
        ? (values as Iterable<readonly [string, Tensor]>)
        : Object.entries(values as Record<string, Tensor>);
    for (const entry of entries) {
      checkIterable('ParameterDict', 'an entry', entry, 'a name and a parameter');
      this.set(entry[0], entry[1]);
    }
    return this;
  }

  delete(name: string): boolean {
    return this.items.delete(name);
  }

  keys(): IterableIterator<string> {
    return this.items.keys();
  }

  values(): IterableIterator<Parameter> {
    return this.items.values();
  }

  [Symbol.iterator](): IterableIterator<[string, Parameter]> {
    return this.items.entries();
  }

  override extraRepr(): string {
    return [...this.items].map(([name, item]) => line(name, item, typeName(item))).join('\n');
  }
}

const typeNames: Readonly<Record<string, string>> = {
  float64: 'DoubleTensor',
  float32: 'FloatTensor',
  float16: 'HalfTensor',
  bfloat16: 'BFloat16Tensor',
  complex64: 'ComplexFloatTensor',
  complex128: 'ComplexDoubleTensor',
};

function typeName(parameter: Parameter): string {
  const place = parameter.isCuda ? 'torch.cuda' : 'torch';
  return `${place}.${typeNames[parameter.dtype.name] ?? 'Tensor'}`;
}
