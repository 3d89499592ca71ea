/**
 * @file Records one run of a module as a flat list of nodes. On meta tensors nothing is computed: parameters and other
 * real tensors are replaced by twins without memory at the moment an operator uses them, so the module is not touched.
 */
import {
  type CheckpointOptions,
  type Device,
  FunctionContext,
  type FunctionOutput,
  type FunctionType,
  isGradEnabled,
  nn,
  noGrad,
  type Scope,
  Tensor,
  unscoped,
} from '@pipewright/torch';
import { type BoundOp, callGiven, type Recorder, sharesStorage, withRecorder } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { registerCustomFunction } from '../graph/custom-functions.ts';
import type { CallNode, ElementNode, GraphArgument, NodeReference, TensorMeta, ValueMeta } from '../graph/graph.ts';
import { pipeSplitOp } from '../graph/graph.ts';
import { type FlatNode, type Region, regionsOfAlias } from '../graph/regions.ts';
import { ArgumentEncoder } from './arguments.ts';
import { autocastKey, autocastRegions, gradRegion } from './grad-modes.ts';
import { ModuleStack } from './modules.ts';
import { refuseUntraceable } from './refusals.ts';
import { here } from './source-line.ts';
import type { ModuleState } from './state.ts';
import { isDetached, newValue, noRegions, rootOf, type TracedValue, type View } from './traced-value.ts';
import { disposedError, MetaTwins } from './twins.ts';
import { metaOf } from './values.ts';

/** A tensor of the owner that the graph reads. */
export interface RecordedAttribute {
  readonly name: string;
  readonly target: string;
  readonly tensor: Tensor;
  readonly role: 'parameter' | 'buffer';
  readonly persistent: boolean;
  readonly meta: ValueMeta;
  /** Whether forward makes it: every call of the model begins with another one. */
  readonly isMadeAnew: boolean;
}

/** Records what happens between `begin` and the end of the run. */
export class TraceRecorder implements Recorder {
  readonly nodes: FlatNode[] = [];
  readonly attributes: RecordedAttribute[] = [];
  readonly modules: ModuleStack = new ModuleStack();
  private readonly scope: Scope;
  private readonly encoder = new ArgumentEncoder(
    (tensor) => this.referenceTo(tensor),
    (tensor, what) => this.beforeAccess(tensor, what),
  );
  private readonly state: ModuleState;
  private readonly values = new Map<Tensor, TracedValue>();
  private readonly byTarget = new Map<string, TracedValue>();
  /** Null where the run computes. */
  private readonly twins: MetaTwins | null;
  private readonly names = new Map<string, number>();
  private readonly gradAtStart = isGradEnabled();
  private readonly autocastAtStart = autocastKey();
  private readonly checkpoints: Region[] = [];
  private instead: readonly Region[] | null = null;
  private numCheckpoints = 0;
  private numConstants = 0;

  /** `scope` is that of the run: what it owns is made by forward. */
  constructor(state: ModuleState, scope: Scope, onMeta: boolean) {
    this.state = state;
    this.scope = scope;
    this.twins = onMeta ? new MetaTwins() : null;
  }

  /** Makes a tensor an input of the graph; returns its name. */
  addInput(tensor: Tensor, hint: string, device: Device): string {
    const name = this.unique(hint);
    this.values.set(
      tensor,
      newValue(
        name,
        device,
        withRecorder(null, () => metaOf(tensor)),
      ),
    );
    return name;
  }

  /** The node that a tensor is, for the output. */
  referenceTo(tensor: Tensor): NodeReference {
    return { ref: this.refOf(this.valueOf(tensor)) };
  }

  /** The nodes that a tensor is and lies in now; none for one that no operator of the run made. */
  nodesOf(tensor: Tensor): string[] {
    const value = this.values.get(tensor);
    return value === undefined ? [] : [value.ref, rootOf(value).ref];
  }

  /** Whether the graph reads a tensor that was there before. */
  reads(tensor: Tensor): boolean {
    return this.attributes.some((each) => each.tensor === tensor);
  }

  /** Puts the border of two stages here. */
  mark(): void {
    this.emit(pipeSplitOp, [], {}, null);
  }

  // --- what the engine tells -----------------------------------------------------------------------------------------

  operator(op: BoundOp, given: readonly unknown[]): unknown {
    refuseUntraceable(op, given, (tensor, what) => this.beforeAccess(tensor, what));
    const { args, kwargs } = this.encoder.call(op, given);
    const result = withRecorder(null, () => callGiven(op, this.twins?.arguments(op, given) ?? given));
    const written = op.args.flatMap((arg, i) => (arg.written ? [i] : []));
    const returned = op.inPlace ? [0] : op.outs;
    const tensors = isList(result) ? result : [result];
    if (returned.length === 0 && !tensors.some((item) => item instanceof Tensor) && op.returns.length > 0)
      return result;
    const meta = withRecorder(null, () => (Array.isArray(result) ? tensors.map(metaOf) : metaOf(result)));
    const name = this.emit(op.fullName, args, kwargs, op.returns.length === 0 ? null : meta);
    if (written.length > 0) return this.changed(op, given, { name, written, returned, result });
    const source = {
      bound: op,
      op: op.fullName,
      args,
      kwargs,
      given,
      aliased: op.args.findIndex((arg) => arg.aliased),
    };
    if (!Array.isArray(result)) this.define(result, { ref: name, index: null, meta }, source);
    else
      tensors.forEach((item, index) => {
        if (!(item instanceof Tensor)) return;
        const own = (meta as ValueMeta[])[index] ?? null;
        this.define(item, { ref: this.element(name, index, own), index, meta: own }, source);
      });
    return result;
  }

  customFunction(type: FunctionType<unknown[], FunctionOutput>, args: unknown[]): FunctionOutput {
    const { name: typeName } = type;
    if (typeof (type as unknown) !== 'function')
      throw new PipelineError(
        'TRACE_UNTRACEABLE',
        `trace: ${typeName}${here()} belongs to one call only, as hooks on the gradients of a module do, so a graph cannot hold it; remove the hooks, and add them to the stages`,
      );
    const op = registerCustomFunction(type);
    const encoded = args.map((value) => this.encoder.value(value, type.name));
    const result = withRecorder(null, () =>
      FunctionContext.run(
        type,
        args.map((value) => this.twins?.in(value) ?? value),
      ),
    );
    const list = result instanceof Tensor ? [result] : result;
    const metas = withRecorder(null, () => list.map(metaOf));
    const name = this.emit(op, encoded, {}, result instanceof Tensor ? (metas[0] as ValueMeta) : metas);
    list.forEach((item, i) => {
      if (item === null) return;
      const ref = result instanceof Tensor ? name : this.element(name, i, metas[i] ?? null);
      this.values.set(item, newValue(ref, this.commonDevice(args), metas[i] ?? null, this.regions()));
    });
    return result;
  }

  checkpoint<T>(body: () => T, options: CheckpointOptions | undefined): T {
    const kwargs: Record<string, GraphArgument> = {};
    for (const [key, value] of Object.entries(options ?? {})) if (value !== undefined) kwargs[key] = value as boolean;
    const key = `checkpoint ${this.numCheckpoints++}`;
    this.checkpoints.push({ op: 'tag_activation_checkpoint', before: [], kwargs, key });
    try {
      return body();
    } finally {
      this.checkpoints.pop();
    }
  }

  alias(tensor: Tensor): Tensor {
    const value = this.valueOf(tensor);
    const made = withRecorder(null, () => this.computed(tensor).alias());
    this.values.set(made, value);
    return made;
  }

  deviceOf(tensor: Tensor): Device {
    return this.values.get(tensor)?.device ?? withRecorder(null, () => tensor.device);
  }

  beforeAccess(tensor: Tensor, what: string): void {
    const changes = ['setData()', 'backward()', 'grad()'].includes(what);
    const isConstant = !this.values.has(tensor) && !this.state.owns(tensor);
    if (isConstant && !changes) return;
    const at = here();
    if (changes)
      throw new PipelineError(
        'TRACE_UNTRACEABLE',
        `trace: ${what}${at} is not an operator, so a graph cannot hold it; do it outside of forward, or hand stage modules to PipelineStage without tracing`,
        { what },
      );
    throw new PipelineError(
      'TRACE_READS_VALUE',
      `trace: ${what}${at} reads values while the model is traced, where there are none yet; compute with tensors instead (where, maskedFill, gather), pass the number as an argument of forward, or hand stage modules to PipelineStage without tracing`,
      { what },
    );
  }

  // --- nodes ---------------------------------------------------------------------------------------------------------

  /** A name that no node has yet. */
  private unique(hint: string): string {
    const count = this.names.get(hint);
    if (count === undefined) {
      this.names.set(hint, 1);
      return hint;
    }
    for (let i = count; ; i++) {
      const name = `${hint}_${i}`;
      if (this.names.has(name)) continue;
      this.names.set(hint, i + 1);
      this.names.set(name, 1);
      return name;
    }
  }

  private emit(
    op: string,
    args: readonly GraphArgument[],
    kwargs: Readonly<Record<string, GraphArgument>>,
    meta: ValueMeta,
  ): string {
    const name = this.unique(op.replace(/^.*::/, '').replace(/\..*$/, ''));
    return this.add({ kind: 'call', name, op, args, ...(Object.keys(kwargs).length === 0 ? {} : { kwargs }) }, meta);
  }

  private element(of: string, index: number, meta: ValueMeta): string {
    return this.add({ kind: 'element', name: this.unique('getitem'), of: { ref: of }, index }, meta);
  }

  /** Adds a node, with what is known of its value, where it came from and the modes it runs under. */
  private add(node: CallNode | ElementNode, meta: ValueMeta): string {
    const known = meta === null ? {} : { meta };
    this.nodes.push({ node: { ...node, ...known, modules: this.modules.current }, regions: this.regions() });
    return node.name;
  }

  /** Makes nodes under the modes of a value that is made again, whatever the modes of its user: gradients flow through it. */
  private under<T>(regions: readonly Region[], make: () => T): T {
    const before = this.instead;
    this.instead = regions;
    try {
      return make();
    } finally {
      this.instead = before;
    }
  }

  /** The modes that operators run under now. */
  private regions(): readonly Region[] {
    if (this.instead !== null) return this.instead;
    const grad = isGradEnabled();
    const cast = autocastKey();
    if (grad === this.gradAtStart && cast === this.autocastAtStart)
      return this.checkpoints.length === 0 ? noRegions : [...this.checkpoints];
    return [
      ...this.checkpoints,
      ...(cast === this.autocastAtStart ? [] : autocastRegions()),
      ...(grad === this.gradAtStart ? [] : [gradRegion(grad)]),
    ];
  }

  // --- values --------------------------------------------------------------------------------------------------------

  /** Notes what a result is: a value of its own, or a view of an argument. */
  private define(result: unknown, place: Place, source: Source): void {
    if (!(result instanceof Tensor)) return;
    const { given } = source;
    const { ref, index, meta } = place;
    const device = this.resultDevice(source);
    const at = withRecorder(null, () => this.viewedArgument(result, source));
    const parent = given[at];
    const shares = parent instanceof Tensor;
    if (!shares) {
      this.values.set(result, newValue(ref, device, meta, this.regions()));
      return;
    }
    const { op, args, kwargs } = source;
    const value = this.valueOf(parent);
    const view: View = { parent: value, op, args, kwargs, at, index };
    this.values.set(result, { ...newValue(ref, device, meta, this.regions()), view, seen: rootOf(value).changes });
  }

  /** The argument that a result is a view of, or is itself, as dropout gives its input back in evaluation; -1 for none. */
  private viewedArgument(result: Tensor, { given, aliased }: Source): number {
    if (aliased >= 0 && sharesStorage(result)) return aliased; // a reshape may be a view or a copy
    // Or the argument itself, as that of contiguous. Storage says nothing of other operators: backward may keep their results.
    return given.findIndex((value) => value instanceof Tensor && result.isSame(this.computed(value)));
  }

  /** An operator changed some of its arguments: from here on they are other nodes. */
  private changed(op: BoundOp, given: readonly unknown[], call: Change): unknown {
    const { name, written, returned, result } = call;
    const resultAt = (i: number, { meta }: TracedValue): string =>
      op.returns.length > 1 ? this.element(name, i, meta) : name;
    for (const at of written) {
      const target = given[at];
      for (const tensor of isList(target) ? target : [target]) {
        if (!(tensor instanceof Tensor)) continue;
        const value = this.valueOf(tensor);
        const place = returned.indexOf(at);
        this.move(value, place >= 0 ? resultAt(place, value) : this.again(value));
        if (isDetached(value)) value.hasOwnGradient = withRecorder(null, () => this.computed(tensor).requiresGrad);
      }
    }
    if (op.inPlace) return given[0];
    if (returned.length === 0) return result;
    return returned.length === 1 ? given[returned[0]!] : returned.map((at) => given[at]);
  }

  private move(value: TracedValue, ref: string): void {
    const root = rootOf(value);
    root.changes++;
    // The memory that a changed view belongs to has changed as well: whoever reads it later depends on this place.
    if (root !== value) root.ref = this.again(root);
    root.seen = root.changes;
    value.ref = ref;
    value.seen = root.changes;
  }

  /** The same tensor as a node made here: what reads it comes after this place. */
  private again({ ref, meta, regions }: TracedValue): string {
    return this.under(regionsOfAlias(regions), () => this.emit('aten::alias', [{ ref }], {}, meta));
  }

  /** The node of a value now; a view whose memory was changed since is made again. */
  private refOf(value: TracedValue): string {
    const { view } = value;
    if (view === null || value.seen === rootOf(value).changes) return value.ref;
    if (value.hasOwnGradient)
      throw new PipelineError(
        'TRACE_UNTRACEABLE',
        `trace: a detached view that was changed in place with gradients is used${here()} after the tensor it shares memory with was changed too, and a graph cannot hold both; change a copy instead, as y.detach().clone()`,
      );
    const parent = this.refOf(view.parent);
    const args = view.args.map((arg, i) => (i === view.at ? { ref: parent } : arg));
    value.ref = this.under(value.regions, () => {
      const name = this.emit(view.op, args, view.kwargs, view.index === null ? value.meta : null);
      return view.index === null ? name : this.element(name, view.index, value.meta);
    });
    value.seen = rootOf(value).changes;
    return value.ref;
  }

  private valueOf(tensor: Tensor): TracedValue {
    const known = this.values.get(tensor);
    if (known !== undefined) return known;
    if (tensor.isDisposed) throw disposedError();
    const found = this.state.nameOf(tensor, this.modules.current.at(-1)?.path.replace(/@\d+/g, '') ?? '');
    const target = found ?? `lifted_tensor_${this.numConstants++}`;
    const value = this.byTarget.get(target) ?? this.addAttribute(tensor, target, found !== null);
    if (!this.state.isTied(tensor)) this.values.set(tensor, value); // a tied one is called by another name elsewhere
    return value;
  }

  private addAttribute(tensor: Tensor, target: string, isOwned: boolean): TracedValue {
    const { device, meta } = withRecorder(null, () => {
      const known = tensor.device;
      return { device: known, meta: { ...(metaOf(tensor) as TensorMeta), device: known } };
    });
    if (this.twins !== null && device === 'meta' && !isOwned)
      throw new PipelineError(
        'TRACE_UNTRACEABLE',
        `trace: a tensor${here()} was made in a way that tracing does not see; make it with operators or with tensor(...)`,
      );
    const name = this.unique(target.replaceAll('.', '_'));
    const role = tensor instanceof nn.Parameter ? 'parameter' : 'buffer';
    const persistent = tensor instanceof nn.Parameter || (tensor instanceof nn.Buffer && tensor.persistent);
    const isMember = isOwned || tensor instanceof nn.Parameter || tensor instanceof nn.Buffer;
    const isMadeAnew = !isMember && this.scope.has(tensor);
    // Its scope may end, and a run that computes may change it.
    const copied = (): Tensor => (isMadeAnew && this.twins === null ? noGrad(() => tensor.clone()) : tensor.alias());
    const own = isMember ? tensor : withRecorder(null, () => unscoped(copied));
    this.attributes.push({ name, target, tensor: own, role, persistent, meta, isMadeAnew });
    const value = newValue(name, device, meta);
    this.byTarget.set(target, value);
    return value;
  }

  /** The tensor that operators compute with. */
  private computed(tensor: Tensor): Tensor {
    return this.twins?.of(tensor) ?? tensor;
  }

  private commonDevice(given: readonly unknown[]): Device {
    for (const value of given) {
      const first = isList(value) ? value[0] : value;
      if (first instanceof Tensor) return this.deviceOf(first);
    }
    return 'cpu';
  }

  private resultDevice({ bound: op, given }: Source): Device {
    const at = op.positions.get('device');
    const asked = at === undefined ? undefined : given[at];
    return typeof asked === 'string' ? asked : this.commonDevice(given);
  }
}

interface Source {
  readonly bound: BoundOp;
  readonly op: string;
  readonly args: readonly GraphArgument[];
  readonly kwargs: Readonly<Record<string, GraphArgument>>;
  readonly given: readonly unknown[];
  /** The argument that the schema says the result is a view of, or -1. */
  readonly aliased: number;
}

/** Where a result is. */
interface Place {
  readonly ref: string;
  /** Which of several results it is. */
  readonly index: number | null;
  readonly meta: ValueMeta;
}

interface Change {
  readonly name: string;
  readonly written: readonly number[];
  readonly returned: readonly number[];
  readonly result: unknown;
}
