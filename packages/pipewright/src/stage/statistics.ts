/**
 * @file Checkpointed modules run twice, once in the forward and once in the backward. The second run finds the buffers (batch
 * norm's running statistics, counters, averages) as the first one found them, and what it changes in them is forgotten, so
 * that each microbatch changes them once; PyTorch changes them in both runs, and computes the second with what it finds.
 */
import { isGradEnabled, nn, noGrad, type Tensor, unscoped } from '@pipewright/torch';
import { watchQuietChanges } from '@pipewright/torch/internal';
import { callForward } from '../base/call-forward.ts';
import { PipelineError } from '../base/errors.ts';
import { addressOf } from '../base/memory.ts';

/** Buffers of more bytes than this are not copied any more once a forward has left them alone. */
const LARGE = 256 * 1024;

/** A buffer, and what can tell that a run has changed it. */
interface Watched {
  readonly buffer: nn.Buffer;
  readonly name: string;
  readonly handle: number;
  readonly version: number;
  readonly address: bigint;
  /** Its values; null where they are not copied. */
  readonly copy: Tensor | null;
}

/** A module and the values of its fields before a run. */
interface Fields {
  readonly module: nn.Module;
  readonly values: readonly [field: string, value: unknown][];
}

/** A field that the first run has given another buffer, and what was in it before. */
interface Replaced {
  readonly module: nn.Module;
  readonly field: string;
  readonly value: unknown;
}

/** What the runs of a stage's module have shown of its buffers; one for each stage. */
export class Statistics {
  readonly module: nn.Module;
  /** Large buffers that no run has changed so far. */
  private readonly constant = new WeakSet<nn.Buffer>();

  constructor(module: nn.Module) {
    this.module = module;
  }

  /** Keeps copies of what may change from now on. */
  watch(): Watched[] {
    const buffers = this.module.namedBuffers().filter(([, buffer]) => !buffer.isDisposed);
    return keeping(() =>
      buffers.map(([name, buffer]) => ({
        buffer,
        name,
        handle: buffer.handle,
        version: buffer.version,
        address: addressOf(buffer),
        copy: this.constant.has(buffer) ? null : buffer.clone(),
      })),
    );
  }

  /** The buffers that a run has changed, with copies of what they were; frees the other copies. */
  changed(watched: readonly Watched[], quietly: ReadonlySet<bigint>): Changed[] {
    return watched.flatMap(({ buffer, name, handle, version, address, copy }) => {
      const isSame =
        buffer.h === handle && buffer.version === version && addressOf(buffer) === address && !quietly.has(address);
      if (isSame) {
        copy?.dispose();
        if (copy !== null && buffer.nbytes > LARGE) this.constant.add(buffer);
        return [];
      }
      this.constant.delete(buffer);
      if (copy === null) throw lateChange(name, buffer);
      // What had no values before, in a lazy module, keeps those it was given.
      const hadValues = !copy.isMeta || buffer.isDisposed || buffer.isMeta;
      return [{ buffer, before: hadValues ? copy : keeping(() => buffer.clone()) }];
    });
  }
}

/** A buffer that the first run has changed, and what it was before. */
interface Changed {
  readonly buffer: nn.Buffer;
  readonly before: Tensor;
}

/** The runs of one microbatch: the first is as ever, the others find the buffers as the first one found them. */
export class MicrobatchRuns {
  private readonly statistics: Statistics;
  private changed: readonly Changed[] = [];
  private replaced: readonly Replaced[] = [];
  private hasRun = false;

  constructor(statistics: Statistics) {
    this.statistics = statistics;
  }

  /** Calls the module's forward. */
  run(inputs: readonly unknown[]): unknown {
    if (this.hasRun) return this.again(() => this.forward(inputs));
    return isGradEnabled() ? this.first(inputs) : this.forward(inputs);
  }

  /** Frees the copies; there will be no other run. */
  dispose(): void {
    for (const { before } of this.changed) before.dispose();
    this.changed = [];
    this.replaced = [];
  }

  private forward(inputs: readonly unknown[]): unknown {
    return callForward(this.statistics.module, inputs);
  }

  private first(inputs: readonly unknown[]): unknown {
    const { statistics } = this;
    const fields = statistics.module.modules().map((module): Fields => ({ module, values: Object.entries(module) }));
    const watched = statistics.watch();
    try {
      const { result, changed } = watchQuietChanges(() => this.forward(inputs));
      this.hasRun = true;
      this.changed = statistics.changed(watched, changed);
      this.replaced = fields.flatMap(replacedOf);
      return result;
    } catch (error) {
      for (const { copy } of watched) copy?.dispose();
      throw error;
    }
  }

  /** Runs `body` on what the first run began with, and puts back what is there now. */
  private again(body: () => unknown): unknown {
    const { changed, replaced } = this;
    if (changed.length === 0 && replaced.length === 0) return body();
    const now = replaced.map(({ module, field }): unknown => Reflect.get(module, field));
    const values = keeping(() => changed.map(({ buffer }) => (buffer.isDisposed ? null : buffer.alias())));
    try {
      for (const { module, field, value } of replaced) Reflect.set(module, field, value);
      // Copies of the copies: there may be one more run.
      keeping(() => changed.forEach(({ buffer, before }) => move(before.clone(), buffer)));
      return body();
    } finally {
      replaced.forEach(({ module, field }, i) => Reflect.set(module, field, now[i]));
      changed.forEach(({ buffer }, i) => move(values[i] ?? null, buffer));
    }
  }
}

/** Runs `body` outside of scopes and of the graph of gradients: its tensors live until they are disposed of. */
function keeping<T>(body: () => T): T {
  return unscoped(() => noGrad(body));
}

/** Makes a buffer be a tensor, whose own handle is freed; null stands for a buffer that was disposed of. */
function move(tensor: Tensor | null, buffer: nn.Buffer): void {
  if (tensor === null) return buffer.dispose();
  buffer.become(tensor);
  tensor.dispose();
}

/** The fields that have another buffer than before, a first one, or none any more. */
function replacedOf({ module, values }: Fields): Replaced[] {
  const now = Object.entries(module);
  if (now.length === values.length && now.every(([, value], i) => value === values[i]![1])) return [];
  const before = new Map(values);
  const fields = new Set([...before.keys(), ...now.map(([field]) => field)]);
  return [...fields].flatMap((field) => {
    const [value, there] = [before.get(field), Reflect.get(module, field) as unknown];
    const isReplaced = value !== there && (value instanceof nn.Buffer || there instanceof nn.Buffer);
    return isReplaced ? [{ module, field, value }] : [];
  });
}

function lateChange(name: string, buffer: nn.Buffer): PipelineError {
  return new PipelineError(
    'BAD_STATE',
    `the module changes its buffer '${name}' of ${buffer.nbytes} bytes for the first time, after forwards that left it alone; what it was before is not kept for buffers of more than ${LARGE} bytes that do not change, and the backward of a checkpointed stage needs it to compute the forward again. From now on it is kept: go back to the last saved state and run the step again; or build the stage with checkpoint: false`,
  );
}
