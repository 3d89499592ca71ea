/**
 * @file A graph compiled for running: a flat list of steps over registers that hold tensors as bare handles. Each value
 * is freed right after its last use. `compile.ts` makes it.
 */
import { isGradEnabled, Tensor, TorchError } from '@pipewright/torch';
import {
  duplicateHandle,
  ownBytesOfHandle,
  type RegisterKind,
  type Registers,
  releaseHandle,
  releaseHandles,
} from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { type GraphNode, originOf } from '../graph/graph.ts';

/** One step of a program. */
export interface Step {
  readonly node: GraphNode;
  readonly run: (registers: Registers) => unknown;
  /** The register that takes what `run` returns; -1 where it puts its results away itself. */
  readonly out: number;
  /** Registers that are freed after the step. */
  frees: readonly number[];
}

/** What the program returns: trees of registers and of values known beforehand. */
export type OutputPlan =
  | { readonly register: number; readonly kind: RegisterKind }
  | { readonly value: unknown }
  | { readonly list: readonly OutputPlan[] }
  | { readonly dict: readonly (readonly [string, OutputPlan])[] };

/** Where a register's value comes from when no step makes it. */
export interface BorrowedRegister {
  readonly register: number;
  readonly kind: RegisterKind;
}

/** Everything that compiling found out. */
export interface ProgramParts {
  /** Registers as a run begins: constants are in, the rest is empty. */
  readonly template: readonly unknown[];
  /** Tensors whose handles are among the constants. */
  readonly owners: readonly Tensor[];
  readonly inputs: readonly BorrowedRegister[];
  /** `index` is the position in the attributes that a run is given. */
  readonly attributes: readonly (BorrowedRegister & { readonly index: number })[];
  readonly steps: readonly Step[];
  readonly output: OutputPlan;
  /** Programs that steps run; they ask for the attributes' handles. */
  readonly subPrograms: readonly Program[];
  /** Whether steps overwrite their arguments while no gradients are recorded. */
  readonly overwrites: boolean;
  /** Registers that steps fill: when, and until when they are needed (`Infinity`: they are results). */
  readonly owned: readonly { readonly register: number; readonly from: number; readonly until: number }[];
}

/** The register that holds the handles of all attributes during a run, for sub-programs. */
export const ATTRIBUTES = 0;

/** The register that says whether gradients are recorded. */
export const RECORDS_GRADIENTS = 1;

/** Frees whatever a register holds: a handle, a list of handles, or something that needs no freeing. */
export function freeValue(value: unknown, kind: RegisterKind | 'other'): void {
  if (kind === 'tensor') {
    if (typeof value === 'number' && value !== 0) releaseHandle(value);
  } else if (kind === 'tensors' && Array.isArray(value)) {
    for (const item of value) freeValue(item, Array.isArray(item) ? 'tensors' : 'tensor');
  }
}

/** A second hold of whatever a register holds. */
export function shareValue(value: unknown, kind: RegisterKind | 'other'): unknown {
  if (kind === 'tensor') return typeof value === 'number' && value !== 0 ? duplicateHandle(value) : value;
  if (kind === 'tensors' && Array.isArray(value))
    return value.map((item) => shareValue(item, Array.isArray(item) ? 'tensors' : 'tensor'));
  return value;
}

/** Values up to this size are freed several at a time, which is cheaper: they hold half a megabyte at most. */
const smallBytes = 16_384;
const batchLength = 32;

/** A compiled graph. */
export class Program {
  readonly parts: ProgramParts;
  /** The steps laid out: what runs, where the result goes, and which registers are freed after it. */
  private readonly runs: readonly Step['run'][];
  private readonly outs: Int32Array;
  private readonly freeStarts: Int32Array;
  private readonly freeList: Int32Array;
  private readonly inputRegisters: Int32Array;
  private readonly attributeRegisters: Int32Array;
  private readonly attributeIndices: Int32Array;
  /** The register of the output where that is one tensor that a step made; else -1. */
  private readonly onlyOutput: number;
  /** For each entry of `freeList` whether it was small in a run with inputs of the same sizes; null before there was one. */
  private small: Uint8Array | null = null;
  private readonly batch = new Int32Array(batchLength);
  private isRunning = false;
  private readonly kinds: ReadonlyMap<number, RegisterKind>;
  private readonly ownedRegisters: ReadonlySet<number>;
  /** The kind of every leaf of the output, in order. */
  readonly outputKinds: readonly (RegisterKind | 'other')[];

  constructor(parts: ProgramParts, kinds: ReadonlyMap<number, RegisterKind>) {
    this.parts = parts;
    this.kinds = kinds;
    this.ownedRegisters = new Set(parts.owned.map((item) => item.register));
    this.outputKinds = leafKinds(parts.output);
    this.inputRegisters = Int32Array.from(parts.inputs, ({ register }) => register);
    this.attributeRegisters = Int32Array.from(parts.attributes, ({ register }) => register);
    this.attributeIndices = Int32Array.from(parts.attributes, ({ index }) => index);
    const { output } = parts;
    const isOne = 'register' in output && output.kind === 'tensor' && this.ownedRegisters.has(output.register);
    this.onlyOutput = isOne ? output.register : -1;
    this.runs = parts.steps.map((step) => step.run);
    this.outs = Int32Array.from(parts.steps, (step) => step.out);
    this.freeList = Int32Array.from(parts.steps.flatMap((step) => step.frees));
    this.freeStarts = new Int32Array(parts.steps.length + 1);
    parts.steps.forEach((step, i) => {
      this.freeStarts[i + 1] = this.freeStarts[i]! + step.frees.length;
    });
  }

  /** Runs on raw values (handles, numbers) and returns what each leaf of the output is, owned by the caller. */
  runRaw(inputs: readonly unknown[], attributes: readonly number[]): unknown[] {
    const { parts } = this;
    const registers = parts.template.slice();
    registers[ATTRIBUTES] = attributes;
    if (parts.overwrites) registers[RECORDS_GRADIENTS] = isGradEnabled();
    for (const { register, index } of parts.attributes) registers[register] = attributes[index];
    parts.inputs.forEach(({ register }, i) => {
      registers[register] = inputs[i];
    });
    this.execute(registers, false);
    const given = new Set<number>();
    const leaves: unknown[] = [];
    const collect = (plan: OutputPlan): void => {
      if ('list' in plan) plan.list.forEach(collect);
      else if ('dict' in plan) plan.dict.forEach(([, item]) => collect(item));
      else if ('value' in plan) leaves.push(plan.value);
      else if (this.ownedRegisters.has(plan.register) && !given.has(plan.register)) {
        given.add(plan.register);
        leaves.push(registers[plan.register]);
      } else leaves.push(shareValue(registers[plan.register], plan.kind));
    };
    collect(parts.output);
    return leaves;
  }

  /**
   * Runs on tensors and numbers; the innermost scope takes charge of the results. `isLikeLast` says that the inputs have
   * the sizes of the last run's.
   */
  run(inputs: readonly unknown[], attributes: readonly Tensor[], isLikeLast = false): unknown {
    const { parts } = this;
    const registers = parts.template.slice();
    if (parts.subPrograms.length > 0) registers[ATTRIBUTES] = attributes.map((tensor) => tensor.handle);
    if (parts.overwrites) registers[RECORDS_GRADIENTS] = isGradEnabled();
    const { attributeRegisters, attributeIndices, inputRegisters } = this;
    for (let i = 0; i < attributeRegisters.length; i++)
      registers[attributeRegisters[i]!] = attributes[attributeIndices[i]!]!.handle;
    for (let i = 0; i < inputRegisters.length; i++) {
      const value = inputs[i];
      registers[inputRegisters[i]!] = value instanceof Tensor ? value.handle : value;
    }
    this.execute(registers, !isLikeLast || this.small === null);
    if (this.onlyOutput >= 0) return Tensor.adopt(registers[this.onlyOutput] as number);
    return assemble(parts.output, registers, this.borrowed(inputs, attributes));
  }

  /** Frees the numbers that were made tensors for the program; it cannot run any more. */
  dispose(): void {
    for (const owner of this.parts.owners) owner.dispose();
    for (const program of this.parts.subPrograms) program.dispose();
  }

  /** The tensors that came from outside, by register. */
  private borrowed(inputs: readonly unknown[], attributes: readonly Tensor[]): Map<number, Tensor> {
    const known = new Map<number, Tensor>();
    this.parts.inputs.forEach(({ register }, i) => {
      const value = inputs[i];
      if (value instanceof Tensor) known.set(register, value);
    });
    for (const { register, index } of this.parts.attributes) known.set(register, attributes[index]!);
    return known;
  }

  /** Runs the steps, and frees small values several at a time where a run before this one found out which they are. */
  private execute(registers: unknown[], isMeasuring: boolean): void {
    const { small, isRunning } = this;
    if (isMeasuring || isRunning || small === null) return this.executePlainly(registers, isMeasuring);
    const { runs, outs, freeStarts, freeList, batch } = this;
    const count = runs.length;
    let at = 0;
    let pending = 0;
    this.isRunning = true;
    try {
      for (; at < count; at++) {
        const out = outs[at]!;
        const result = runs[at]!(registers);
        if (out >= 0) registers[out] = result;
        for (let i = freeStarts[at]!; i < freeStarts[at + 1]!; i++) {
          const value = registers[freeList[i]!];
          if (small[i] === 1 && typeof value === 'number' && value !== 0) {
            batch[pending++] = value;
            if (pending === batchLength) {
              releaseHandles(batch, pending);
              pending = 0;
            }
          } else freeValue(value, typeof value === 'number' ? 'tensor' : 'tensors');
        }
      }
    } catch (error) {
      throw this.failed(registers, at, error);
    } finally {
      this.isRunning = false;
      if (pending > 0) releaseHandles(batch, pending);
    }
  }

  private executePlainly(registers: unknown[], isMeasuring: boolean): void {
    const { runs, outs, freeStarts, freeList } = this;
    const small = new Uint8Array(freeList.length);
    let at = 0;
    try {
      for (; at < runs.length; at++) {
        const out = outs[at]!;
        const result = runs[at]!(registers);
        if (out >= 0) registers[out] = result;
        for (let i = freeStarts[at]!; i < freeStarts[at + 1]!; i++) {
          const value = registers[freeList[i]!];
          const isHandle = typeof value === 'number' && value !== 0;
          if (isMeasuring && isHandle && ownBytesOfHandle(value) <= smallBytes) small[i] = 1;
          freeValue(value, isHandle ? 'tensor' : 'tensors');
        }
      }
      if (isMeasuring) this.small = small;
    } catch (error) {
      throw this.failed(registers, at, error);
    }
  }

  /** Frees what was alive when a step failed; returns the error that says which one it was. */
  private failed(registers: unknown[], at: number, error: unknown): unknown {
    for (const { register, from, until } of this.parts.owned)
      if (from < at && until >= at) freeValue(registers[register], this.kinds.get(register)!);
    return stepError(this.parts.steps[at]!.node, error);
  }
}

function leafKinds(plan: OutputPlan): (RegisterKind | 'other')[] {
  if ('list' in plan) return plan.list.flatMap(leafKinds);
  if ('dict' in plan) return plan.dict.flatMap(([, item]) => leafKinds(item));
  return 'value' in plan ? ['other'] : [plan.kind];
}

/** What a run returns, of registers: tensors that were given come back as themselves. */
function assemble(plan: OutputPlan, registers: Registers, known: Map<number, Tensor>): unknown {
  if ('value' in plan) return plan.value;
  if ('list' in plan) return plan.list.map((item) => assemble(item, registers, known));
  if ('dict' in plan)
    return Object.fromEntries(plan.dict.map(([key, item]) => [key, assemble(item, registers, known)]));
  const value = registers[plan.register];
  if (plan.kind !== 'tensor') return plan.kind === 'tensors' ? adoptList(value) : value;
  if (typeof value !== 'number' || value === 0) return null;
  let tensor = known.get(plan.register);
  if (tensor === undefined) {
    tensor = Tensor.adopt(value);
    known.set(plan.register, tensor);
  }
  return tensor;
}

/** Handles in lists as tensors, which take the handles over. */
export function adoptList(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(adoptList);
  return typeof value === 'number' && value !== 0 ? Tensor.adopt(value) : null;
}

function stepError(node: GraphNode, error: unknown): unknown {
  if (error instanceof PipelineError && error.code === 'GRAPH_RUN') return error;
  if (error instanceof TorchError && error.code === 'CHECKPOINT_STOP') return error; // the end of a recomputation
  const what = node.kind === 'call' ? node.op : node.kind === 'module' ? `module ${node.target}` : node.kind;
  const module = node.modules?.at(-1)?.path ?? '';
  const origin = originOf(node);
  const message = error instanceof Error ? error.message : String(error);
  return new PipelineError(
    'GRAPH_RUN',
    `node '${node.name}' (${what}${origin === '' ? '' : `, ${origin}`}): ${message}`,
    { node: node.name, op: what, module, ...(node.source === undefined ? {} : { source: node.source }) },
    { cause: error },
  );
}
