/**
 * @file Operators that run sub-graphs: branches, loops, modes, checkpointing. Values are raw (handles and numbers); what
 * a function here returns belongs to its caller, what it is given does not.
 */
import { autocast, checkpoint, Scope, setGradEnabled, stack, Tensor } from '@pipewright/torch';
import { itemOfHandle, type RegisterKind } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { adoptList, freeValue, type Program, shareValue } from './program.ts';

/** An argument of a higher-order operator in a run: a raw value with its kind, a sub-graph, or a list. */
export type HigherOrderValue =
  | { readonly value: unknown; readonly kind: RegisterKind | 'other' }
  | { readonly program: Program }
  | { readonly list: readonly HigherOrderValue[] };

/** What a higher-order operator is called with. */
export interface HigherOrderCall {
  readonly args: readonly HigherOrderValue[];
  readonly attributes: readonly number[];
  /** Where an operator that names a device shall run instead. */
  readonly device: (device: string) => string;
}

/** Raw values with their kinds, owned by their receiver. */
export interface RawResults {
  readonly values: readonly unknown[];
  readonly kinds: readonly (RegisterKind | 'other')[];
}

/** An operator on sub-graphs. */
export type HigherOrderOp = (call: HigherOrderCall) => RawResults;

/** Runs longer than this are a mistake in the graph rather than work. */
const longestLoop = 100_000_000;

const operators: Readonly<Record<string, HigherOrderOp>> = {
  cond({ args: [test, yes, no, operands], attributes }) {
    return run(programOf(truth(test) ? yes : no), rawList(operands), attributes);
  },

  run_if({ args: [test, body, ...operands], attributes }) {
    if (!truth(test)) return { values: [], kinds: [] };
    return run(programOf(body), rawList({ list: operands }), attributes);
  },

  while_loop({ args: [test, body, carried, extra], attributes }) {
    const fixed = rawList(extra);
    const kinds = kindsIn(carried);
    let values = rawList(carried).map((value, i) => shareValue(value, kinds[i] ?? 'other'));
    try {
      for (let i = 0; i < longestLoop; i++) {
        const [flag] = programOf(test).runRaw([...values, ...fixed], attributes);
        const kind = programOf(test).outputKinds[0] ?? 'other';
        const goes = truth({ value: flag, kind });
        freeValue(flag, kind);
        if (!goes) return { values, kinds };
        const next = programOf(body).runRaw([...values, ...fixed], attributes);
        values.forEach((value, k) => freeValue(value, kinds[k] ?? 'other'));
        values = next;
      }
      throw new PipelineError(
        'GRAPH_RUN',
        `higher_order::while_loop: the condition still holds after ${longestLoop} rounds`,
      );
    } catch (error) {
      values.forEach((value, k) => freeValue(value, kinds[k] ?? 'other'));
      throw error;
    }
  },

  wrap_with_set_grad_enabled({ args: [enabled, body, ...operands], attributes }) {
    const before = setGradEnabled(plain(enabled) === true);
    try {
      return run(programOf(body), rawList({ list: operands }), attributes);
    } finally {
      setGradEnabled(before);
    }
  },

  wrap_with_autocast({ args: [deviceType, dtype, enabled, cache, body, ...operands], attributes, device }) {
    const isOn = plain(enabled) === true;
    const wanted = plain(dtype) as string | null;
    const options = {
      device: device(String(plain(deviceType))),
      enabled: isOn,
      ...(wanted === 'bfloat16' || wanted === 'float16' || (isOn && wanted !== null)
        ? { dtype: wanted as 'float16' }
        : {}),
      ...(plain(cache) === null ? {} : { cache: plain(cache) === true }),
    };
    return autocast(options, () => run(programOf(body), rawList({ list: operands }), attributes));
  },

  tag_activation_checkpoint({ args: [body, ...operands], attributes }) {
    const program = programOf(body);
    return onTensors(rawList({ list: operands }), kindsIn({ list: operands }), (given) =>
      checkpoint((...values: unknown[]) => runOnTensors(program, values, attributes), given),
    );
  },

  map_impl({ args: [body, mapped, fixed], attributes }) {
    const program = programOf(body);
    const others = rawList(fixed);
    return allTensors(eachSlice(rawList(mapped), (slices) => program.runRaw([...slices, ...others], attributes)));
  },

  scan({ args: [body, initial, scanned, extra], attributes }) {
    const program = programOf(body);
    const others = rawList(extra);
    const start = rawList(initial);
    let carried = start.map((value) => shareValue(value, 'tensor'));
    const { length } = carried;
    try {
      const stacked = eachSlice(rawList(scanned), (slices) => {
        const next = program.runRaw([...carried, ...slices, ...others], attributes);
        for (const value of carried) freeValue(value, 'tensor');
        carried = next.slice(0, length);
        return next.slice(length);
      });
      return allTensors([...carried, ...stacked]);
    } catch (error) {
      for (const value of carried) freeValue(value, 'tensor');
      throw error;
    }
  },

  associative_scan({ args: [body, scanned, extra], attributes }) {
    const program = programOf(body);
    const others = rawList(extra ?? { list: [] });
    let before: unknown[] = [];
    try {
      const stacked = eachSlice(rawList(scanned), (slices) => {
        const next =
          before.length === 0
            ? slices.map((value) => shareValue(value, 'tensor'))
            : program.runRaw([...before, ...slices, ...others], attributes);
        for (const value of before) freeValue(value, 'tensor');
        before = next.map((value) => shareValue(value, 'tensor'));
        return next;
      });
      return allTensors(stacked);
    } finally {
      for (const value of before) freeValue(value, 'tensor');
    }
  },

  invoke_subgraph({ args: [body, , ...operands], attributes }) {
    return run(programOf(body), rawList({ list: operands }), attributes);
  },

  wrap({ args: [body, ...operands], attributes }) {
    return run(programOf(body), rawList({ list: operands }), attributes);
  },

  hints_wrap({ args: [body, operands], attributes }) {
    return run(programOf(body), rawList(operands), attributes);
  },
};

/** Operators that do the same under another name. */
const aliases: Readonly<Record<string, string>> = {
  wrap_activation_checkpoint: 'tag_activation_checkpoint',
  checkpoint: 'tag_activation_checkpoint',
  strict_mode: 'wrap',
  run_const_graph: 'wrap',
  nested_compile_region: 'wrap',
};

/** The names of the operators on sub-graphs that can be run, without `higher_order::`. */
export const higherOrderNames: readonly string[] = [...Object.keys(operators), ...Object.keys(aliases)];

/** The operator on sub-graphs of that name (`higher_order::cond`), or nothing. */
export function higherOrderOp(name: string): HigherOrderOp | undefined {
  const short = name.startsWith('higher_order::') ? name.slice(14) : '';
  const own = Object.hasOwn(aliases, short) ? aliases[short]! : short;
  return Object.hasOwn(operators, own) ? operators[own] : undefined;
}

function run(program: Program, inputs: readonly unknown[], attributes: readonly number[]): RawResults {
  return { values: program.runRaw(inputs, attributes), kinds: program.outputKinds };
}

function allTensors(values: readonly unknown[]): RawResults {
  return { values, kinds: values.map(() => 'tensor') };
}

function programOf(value: HigherOrderValue | undefined): Program {
  if (value !== undefined && 'program' in value) return value.program;
  throw new PipelineError('GRAPH_RUN', 'a sub-graph is expected where another value is given');
}

function plain(value: HigherOrderValue | undefined): unknown {
  return value !== undefined && 'value' in value ? value.value : null;
}

function truth(value: HigherOrderValue | undefined): boolean {
  if (value === undefined || !('value' in value)) return false;
  const found = value.kind === 'tensor' ? itemOfHandle(value.value as number) : value.value;
  return found === true || (typeof found === 'number' && found !== 0);
}

/** The raw values of operands, lists laid out. */
function rawList(value: HigherOrderValue | undefined): unknown[] {
  if (value === undefined) return [];
  if ('list' in value) return value.list.flatMap(rawList);
  return 'value' in value ? [value.value] : [];
}

function kindsIn(value: HigherOrderValue | undefined): (RegisterKind | 'other')[] {
  if (value === undefined) return [];
  if ('list' in value) return value.list.flatMap(kindsIn);
  return 'value' in value ? [value.kind] : [];
}

/** Runs `body` on the slices of tensors along their first dimension, and stacks what it returns. */
function eachSlice(handles: readonly unknown[], body: (slices: readonly unknown[]) => unknown[]): unknown[] {
  const inner = new Scope();
  try {
    const whole = handles.map((handle) => Tensor.adopt(shareValue(handle, 'tensor') as number));
    const count = whole[0]?.size(0) ?? 0;
    const rows: Tensor[][] = [];
    for (let i = 0; i < count; i++) {
      const slices = whole.map((tensor) => tensor.select(0, i));
      const outputs = body(slices.map((tensor) => tensor.handle));
      rows.push(outputs.map((handle) => Tensor.adopt(handle as number)));
    }
    const columns = rows[0] ?? [];
    return columns.map((_, k) => shareValue(stack(rows.map((row) => row[k]!)).handle, 'tensor'));
  } finally {
    inner.close();
  }
}

/** Calls a function on tensors that stand for raw values, and returns what it returns as raw values. */
export function onTensors(
  values: readonly unknown[],
  kinds: readonly (RegisterKind | 'other')[],
  body: (given: unknown[]) => unknown,
): RawResults {
  const inner = new Scope();
  try {
    const result = body(values.map((value, i) => tensorOf(value, kinds[i] ?? 'other')));
    const results: readonly unknown[] = Array.isArray(result) ? result : [result];
    return { values: results.map(rawOf), kinds: results.map(kindOfResult) };
  } finally {
    inner.close();
  }
}

function tensorOf(value: unknown, kind: RegisterKind | 'other'): unknown {
  if (kind === 'tensor' && typeof value === 'number') return Tensor.adopt(shareValue(value, kind) as number);
  return kind === 'tensors' ? adoptList(shareValue(value, kind)) : value;
}

function kindOfResult(value: unknown): RegisterKind | 'other' {
  if (value instanceof Tensor || value === null) return 'tensor';
  if (Array.isArray(value)) return value.every((item) => item instanceof Tensor || item === null) ? 'tensors' : 'other';
  return 'other';
}

/** A result as a raw value that its caller owns. */
function rawOf(value: unknown): unknown {
  if (value instanceof Tensor) return shareValue(value.handle, 'tensor');
  return kindOfResult(value) === 'tensors' ? (value as unknown[]).map(rawOf) : value;
}

/** Runs a program on tensors; results are tensors in the innermost scope. */
function runOnTensors(program: Program, values: readonly unknown[], attributes: readonly number[]): unknown[] {
  const raw = values.map((value) => (value instanceof Tensor ? value.handle : value));
  const results = program.runRaw(raw, attributes);
  return results.map((value, i) => {
    const kind = program.outputKinds[i];
    if (kind === 'tensors') return adoptList(value);
    return kind === 'tensor' && typeof value === 'number' ? Tensor.adopt(value) : value;
  });
}
