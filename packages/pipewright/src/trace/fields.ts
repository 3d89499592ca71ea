/**
 * @file Fields that forward sets. A run under the recorder leaves them as they were; a graph cannot set them, so the trace
 * refuses those that a later call of the model would find changed. A cache that follows from constants alone is none of
 * them: the graph computes it.
 */
import { nn, Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { changedBy, isRandom, memoryOf } from '../graph/effects.ts';
import { type GraphNode, inputsOf } from '../graph/graph.ts';
import type { TraceRecorder } from './recorder.ts';
import type { ModuleState } from './state.ts';

type Entries = ReadonlyMap<unknown, unknown>;

/** An object of the model whose fields or items may be set: a module, array, map or plain object. */
interface Holder {
  readonly name: string;
  readonly object: object;
  readonly before: Entries;
}

/** A field that was set, and the tensors and modules that it held before and holds now. */
interface FieldChange {
  readonly name: string;
  readonly before: readonly (Tensor | nn.Module)[];
  readonly after: readonly (Tensor | nn.Module)[];
}

/** The fields of all modules of a model as they are when this is made. */
export class ModuleFields {
  private readonly holders: Holder[] = [];
  private readonly seen = new Set<unknown>();

  constructor(module: nn.Module) {
    for (const [path, part] of module.namedModules()) this.remember(path, part);
  }

  private remember(name: string, object: object): void {
    if (this.seen.has(object)) return;
    this.seen.add(object);
    const before = entriesOf(object);
    this.holders.push({ name, object, before });
    for (const [key, value] of before)
      if (isContainer(value)) this.remember(name === '' ? String(key) : `${name}.${String(key)}`, value);
  }

  /** Whether a module was a part of the model. */
  has(module: nn.Module): boolean {
    return this.seen.has(module);
  }

  /** Fields that hold other tensors or modules than before. */
  changes(): FieldChange[] {
    return this.holders.flatMap(({ name, object, before }) => {
      const after = entriesOf(object);
      return [...new Set([...before.keys(), ...after.keys()])].flatMap((key): FieldChange[] => {
        if (before.get(key) === after.get(key)) return [];
        const [were, are] = [contentsOf(before.get(key)), contentsOf(after.get(key))];
        const field = name === '' ? String(key) : `${name}.${String(key)}`;
        return [
          {
            name: field,
            before: were.filter((each) => !are.includes(each)),
            after: are.filter((each) => !were.includes(each)),
          },
        ];
      });
    });
  }

  /** Sets all fields to what they were; returns the tensors that were set since. */
  restore(): Tensor[] {
    const set = this.changes().flatMap(({ after }) => after.filter((each) => each instanceof Tensor));
    for (const { object, before } of this.holders) restoreEntries(object, before);
    return set;
  }
}

function isContainer(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  if (Array.isArray(value) || value instanceof Map) return true;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function entriesOf(object: object): Entries {
  if (object instanceof Map) return new Map(object as Map<unknown, unknown>);
  const found = new Map<unknown, unknown>();
  for (const key of Object.keys(object)) {
    const field = Object.getOwnPropertyDescriptor(object, key);
    if (field !== undefined && 'value' in field) found.set(key, field.value);
  }
  return found;
}

function restoreEntries(object: object, before: Entries): void {
  const after = entriesOf(object);
  if (after.size === before.size && [...before].every(([key, value]) => after.has(key) && after.get(key) === value))
    return;
  if (object instanceof Map) {
    object.clear();
    for (const [key, value] of before) object.set(key, value);
    return;
  }
  for (const key of after.keys()) if (!before.has(key)) Reflect.deleteProperty(object, key as string);
  for (const [key, value] of before) if (after.get(key) !== value) Reflect.set(object, key as string, value);
  if (Array.isArray(object)) object.length = before.size;
}

/** The tensors and modules that a value is or holds. */
function contentsOf(value: unknown, seen: Set<unknown> = new Set()): (Tensor | nn.Module)[] {
  if (value instanceof Tensor || value instanceof nn.Module) return [value];
  if (!isContainer(value) || seen.has(value)) return [];
  seen.add(value);
  return [...entriesOf(value).values()].flatMap((item) => contentsOf(item, seen));
}

/** What a run recorded, as far as fields matter. */
interface Recorded {
  readonly recorder: TraceRecorder;
  readonly state: ModuleState;
  /** Names of the inputs. */
  readonly inputs: readonly string[];
}

/** Throws an error that names a field which forward sets, where a graph could not do as a second call of the model does. */
export function refuseFieldChanges(fields: ModuleFields, recorded: Recorded): void {
  const { recorder, state } = recorded;
  const constants = new Constants(recorded);
  for (const { name, before, after } of fields.changes()) {
    for (const each of after) {
      if (each instanceof nn.Module) {
        if (!fields.has(each)) throw refusal(name, 'a new module', 'make it in the constructor');
      } else if (state.nameOf(each, '') === null) {
        if (each instanceof nn.Buffer || each instanceof nn.Parameter)
          throw refusal(
            name,
            `a new ${each instanceof nn.Buffer ? 'buffer' : 'parameter'}`,
            `make it in the constructor, and change its values: ${copying(name)}`,
          );
        if (!constants.has(each))
          throw refusal(
            name,
            'a tensor that depends on inputs, parameters or random numbers',
            `return the tensor, or make a buffer in the constructor and change its values: ${copying(name)}`,
          );
      }
    }
    const read = before.find((each) => each instanceof Tensor && (state.owns(each) || recorder.reads(each)));
    if (read !== undefined)
      throw refusal(
        name,
        after.length === 0 ? 'something else in place of a tensor' : 'another tensor',
        `make a buffer in the constructor and change its values: ${copying(name)}`,
      );
  }
}

function copying(name: string): string {
  return `noGrad(() => this.${name.slice(name.lastIndexOf('.') + 1)}.copy_(value))`;
}

function refusal(name: string, what: string, wayOut: string): PipelineError {
  return new PipelineError(
    'TRACE_CHANGES_FIELD',
    `trace: forward sets the field ${name} to ${what}, and a graph cannot set fields of the model; ${wayOut}`,
    { field: name },
  );
}

/** Tensors of a run that are the same in every call. */
class Constants {
  private readonly recorder: TraceRecorder;
  private readonly nodes: ReadonlyMap<string, GraphNode>;
  /** Inputs, parameters, and buffers that the run changes. */
  private readonly varying: ReadonlySet<string>;

  constructor({ recorder, inputs }: Recorded) {
    this.recorder = recorder;
    const nodes = new Map(recorder.nodes.map(({ node }) => [node.name, node]));
    this.nodes = nodes;
    this.varying = new Set([
      ...inputs,
      ...recorder.attributes.flatMap(({ name, role }) => (role === 'parameter' ? [name] : [])),
      ...recorder.nodes.flatMap(({ node }) => changedBy(node).map((name) => memoryOf(name, nodes))),
    ]);
  }

  has(tensor: Tensor): boolean {
    const queue = this.recorder.nodesOf(tensor);
    const seen = new Set<string>();
    for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
      if (seen.has(name)) continue;
      seen.add(name);
      const node = this.nodes.get(name);
      if (node === undefined) {
        if (this.varying.has(name)) return false;
        continue;
      }
      if (node.kind === 'call' && isRandom(node.op)) return false;
      queue.push(...inputsOf(node));
    }
    return true;
  }
}
