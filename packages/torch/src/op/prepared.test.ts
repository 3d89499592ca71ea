/** @file Prepared calls against ordinary ones: the same values for every golden case, the same errors, nothing left behind. */
import { describe, expect, test } from 'vitest';
import { decode, decodeNamed, type OpCase, readCases } from '../../testing/cases.ts';
import { callOp, float, liveTensors, ones, scope, Tensor, tensor } from '../index.ts';
import { type Operand, prepareCall, type RegisterKind, releaseHandle } from '../internal.ts';

const cases = readCases<OpCase>('golden/ops');

/** A register file in the making. */
class File {
  readonly registers: unknown[] = [];
  readonly owners: Tensor[] = [];

  readonly keep = (value: unknown, owner?: Tensor): number => {
    if (owner !== undefined) this.owners.push(owner);
    return this.registers.push(value) - 1;
  };

  operand(value: unknown, inRegisters: boolean): Operand {
    if (value instanceof Tensor) return this.register(value.handle, 'tensor');
    if (Array.isArray(value)) return { list: value.map((item) => this.operand(item, inRegisters)) };
    if (inRegisters && Number.isInteger(value)) return this.register(value, 'int');
    if (inRegisters && typeof value === 'boolean') return this.register(value, 'bool');
    return { fixed: value };
  }

  private register(value: unknown, kind: RegisterKind): Operand {
    return { register: this.keep(value), kind };
  }
}

function adopted(value: unknown, type: string | undefined): unknown {
  if (Array.isArray(value)) return value.map((item) => adopted(item, type?.replace(/\[\d*\]/, '')));
  return typeof value === 'number' && type?.startsWith('Tensor') === true ? Tensor.adopt(value) : value;
}

function text(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(text).join(', ')}]`;
  if (!(value instanceof Tensor)) return String(value);
  const write = (_: string, item: unknown): unknown =>
    typeof item === 'number' && !Number.isFinite(item) ? String(item) : item;
  return `${value.dtype.name}[${value.shape}] ${JSON.stringify(value.toArray(), write)}`;
}

function runCase(item: OpCase, inRegisters: boolean): [got: string, want: string] {
  return scope(() => {
    const args = item.args.map((value) => decode(item, value));
    const kwargs = decodeNamed(item);
    const file = new File();
    const copies = (value: unknown): unknown =>
      value instanceof Tensor ? value.clone() : Array.isArray(value) ? value.map(copies) : value;
    const mine = args.map(copies);
    const call = prepareCall(
      item.op,
      {
        args: mine.map((value) => file.operand(value, inRegisters)),
        kwargs: Object.fromEntries(
          Object.entries(kwargs).map(([key, value]) => [key, file.operand(copies(value), inRegisters)]),
        ),
      },
      file.keep,
    );
    const raw = call.run(file.registers);
    const got = call.inPlace
      ? mine[0]
      : call.returns.length > 1
        ? (raw as unknown[]).map((one, i) => adopted(one, call.returns[i]))
        : adopted(raw, call.returns[0]);
    for (const owner of file.owners) owner.dispose();
    return [text(got), text(callOp(item.op, args, kwargs))];
  });
}

describe('prepared calls', () => {
  test.each([
    ['numbers known beforehand', false],
    ['numbers in registers', true],
  ])('give what ordinary calls give, %s', (_, inRegisters) => {
    const before = liveTensors();
    const wrong: string[] = [];
    for (const item of cases) {
      const [got, want] = runCase(item, inRegisters);
      if (got !== want)
        wrong.push(`case ${item.case} ${item.op}: ${got.slice(0, 200)}, expected ${want.slice(0, 200)}`);
    }
    expect(wrong).toEqual([]);
    expect(liveTensors()).toBe(before);
  });

  test('run again and again, with other registers', () => {
    const file = new File();
    const x = tensor([1, 2]);
    const at = file.keep(0);
    const call = prepareCall(
      'aten::mul.Tensor',
      { args: [{ register: at, kind: 'tensor' }, { fixed: float(2) }] },
      file.keep,
    );
    const before = liveTensors();
    for (let i = 1; i <= 3; i++) {
      file.registers[at] = x.handle;
      const handle = call.run(file.registers) as number;
      using y = Tensor.adopt(handle);
      expect(y.toArray()).toEqual([2, 4]);
    }
    expect(liveTensors()).toBe(before);
    expect(() => releaseHandle(x.handle)).not.toThrow();
  });

  test('a float that is whole stays a float, also in a register', () => {
    const file = new File();
    const x = tensor([1, 2], { dtype: 'int64' });
    const args: Operand[] = [
      { register: file.keep(x.handle), kind: 'tensor' },
      { register: file.keep(2), kind: 'float' },
    ];
    for (const name of ['aten::mul.Tensor', 'aten::mul.Scalar']) {
      using y = Tensor.adopt(prepareCall(name, { args }, file.keep).run(file.registers) as number);
      expect(y.dtype.name).toBe('float32');
    }
  });

  test('errors name the operator and the argument', () => {
    const { keep } = new File();
    const x: Operand = { register: 0, kind: 'tensor' };
    const prepare =
      (name: string, args: Operand[], kwargs: Record<string, Operand> = {}) =>
      () =>
        prepareCall(name, { args, kwargs }, keep);
    expect(prepare('aten::relu', [])).toThrow("aten::relu: argument 'self' is missing");
    expect(prepare('aten::relu', [x, x])).toThrow('aten::relu takes 1 arguments (self), got 2');
    expect(prepare('aten::add.Tensor', [x, x], { alpa: { fixed: 1 } })).toThrow(
      "unknown argument 'alpa' (did you mean 'alpha'?)",
    );
    expect(prepare('aten::add.Tensor', [x, x], { self: x })).toThrow("argument 'self' is given twice");
    expect(prepare('aten::view', [x, { fixed: 'a' }])).toThrow(
      "aten::view: argument 'size': expected an array, got 'a'",
    );
    expect(prepare('aten::view', [x, x])).toThrow("aten::view: argument 'size' is int[], and is given a tensor");
    expect(prepare('aten::relu', [{ list: [x] }])).toThrow("argument 'self' is Tensor, and is given a list");
    expect(prepare('aten::relu', [{ fixed: 'x' }])).toThrow("argument 'self': expected a tensor or a number, got 'x'");
    expect(prepare('aten::nothing', [])).toThrow("has no operator 'aten::nothing'");
    expect(ones([1]).item()).toBe(1);
  });
});
