/**
 * @file Messages from GPU to GPU. Tensors go over lanes, which carry no headers: both ends must know what comes. What a stage
 * sends is a function of what goes into a step, so it is learned once:
 *
 * - The first step of a kind (training or evaluation, with the same parameters trained) goes over the channels of the group,
 *   which take messages in any order; both ends note the order of their messages, and the lanes are opened.
 * - A step with inputs of shapes that are new goes over the lanes, with the format of every message ahead of it over the channel.
 * - A step with inputs of known shapes has nothing but the lanes.
 *
 * All ranks must take the same one. So at its beginning every rank tells all others what it was given, as a hash, and all
 * decide by the whole list, which is the same everywhere. A sender whose message is not what its receiver expects (a model whose
 * shapes depend on values) does not send it: that is an error, never a hang or garbage.
 */
import { type distributed, type Tensor, unscoped } from '@pipewright/torch';
import { PipelineError } from '../../base/errors.ts';
import { forgetFirst } from '../../base/forget-first.ts';
import { ChannelTransport } from './channels.ts';
import { compareSteps, firstProblem } from './compare.ts';
import { difference, formatOf, type MessageFormat } from './format.ts';
import { graphObstacle, queueWarning } from './lane-limits.ts';
import { laneOrder } from './lane-order.ts';
import type { Agreement, Envelope, Payload, PostedReceive, StepSignature, Transport } from './transport.ts';

type Lane = Pick<distributed.DeviceLane, 'ready' | 'send' | 'recvPacked' | 'join' | 'mark' | 'forget' | 'close'>;
type Mode = 'channel' | 'announced' | 'remembered';

/** The order of messages of one kind of step. */
interface Order {
  /** By peer: tags in the order of this end. */
  readonly sent: Map<number, number[]>;
  readonly received: Map<number, number[]>;
  /** By peer and tag, once both ends are known. */
  readonly sendLanes: Map<number, Map<number, Lane>>;
  readonly recvLanes: Map<number, Map<number, Lane>>;
  isComplete: boolean;
}

/** The formats of all messages of a step, by peer and tag. */
interface Formats {
  readonly sent: Map<string, MessageFormat>;
  readonly received: Map<string, MessageFormat>;
  isComplete: boolean;
}

/** The lanes of each group, by name: pipelines whose steps follow each other share them. */
const pools = new WeakMap<distributed.ProcessGroup, Map<string, Lane>>();
const ORDERS = 0xd000_0001;
/** Steps of so many different inputs are remembered. */
const mostFormats = 1000;
/** Whether the warning about queues was given. */
let hasWarned = false;

/** Moves payloads over lanes. */
export class LaneTransport implements Transport {
  readonly way = 'from GPU to GPU over NCCL';
  /** A lane carries what its receiver expects and nothing else. */
  readonly carriesRefusals = false;
  private readonly group: distributed.ProcessGroup;
  private readonly channels: ChannelTransport;
  private readonly announces: boolean;
  /** Whether a tensor is where the lanes are. */
  private readonly carries: (tensor: Tensor) => boolean;
  private readonly lanes: Map<string, Lane>;
  private readonly orders = new Map<string, Order>();
  private readonly formats = new Map<string, Formats>();
  private agreed: { readonly order: Order; readonly formats: Formats; readonly mode: Mode } | null = null;
  private step: { readonly order: Order; readonly formats: Formats; readonly mode: Mode } | null = null;
  /** Receives of this step that could not be posted yet, by lane. */
  private readonly waiting = new Map<Lane, LaneReceive[]>();
  private used = new Set<Lane>();
  private readonly onTheirWay = new Set<distributed.PostedTensors>();
  /** Whether more than tensors goes between the stages. */
  private hasValues = false;
  /** Lanes of a step, at most. */
  private mostLanes = 0;

  constructor(group: distributed.ProcessGroup, device: string, options: { announces?: boolean } = {}) {
    this.group = group;
    this.channels = new ChannelTransport(group);
    this.announces = options.announces === true;
    this.carries = (tensor) => tensor.device === device;
    this.lanes = pools.get(group) ?? new Map();
    pools.set(group, this.lanes);
  }

  agree(signature: StepSignature): Agreement {
    const capture = signature.capture === '' ? this.obstacle() : signature.capture;
    const { kind, key, captureProblem } = compareSteps(this.group, { ...signature, capture });
    const order = getOrMake(this.orders, kind, newOrder);
    const formats = getOrMake(this.formats, key, newFormats);
    forgetFirst(this.formats, mostFormats); // the same on all ranks, which have all had the same steps
    const mode = !order.isComplete ? 'channel' : formats.isComplete && !this.announces ? 'remembered' : 'announced';
    this.agreed = { order, formats, mode };
    return { key, isKnown: mode === 'remembered', captureProblem };
  }

  compare(problem: string | null): string | null {
    return firstProblem(this.group, problem);
  }

  beginStep(): void {
    this.step = this.agreed;
    this.waiting.clear();
    this.used = new Set();
  }

  post(envelope: Envelope): PostedReceive {
    const { step } = this;
    if (step === null) return this.channels.post(envelope);
    const { peer, tag } = envelope;
    const { order, formats, mode } = step;
    if (mode === 'channel') {
      getOrMake(order.received, peer, newList).push(tag);
      const posted = this.channels.post(envelope);
      return {
        wait: () => {
          const payload = posted.wait();
          formats.received.set(keyOf(envelope), formatOf(payload, this.carries));
          return payload;
        },
      };
    }
    const lane = order.recvLanes.get(peer)?.get(tag);
    if (lane === undefined) throw this.unexpected(envelope, 'receives');
    const known = mode === 'remembered' ? formats.received.get(keyOf(envelope)) : undefined;
    if (mode === 'remembered' && known === undefined) throw this.unexpected(envelope, 'receives');
    const receive = new LaneReceive(this, lane, envelope);
    if (known !== undefined) receive.begin(known);
    else {
      getOrMake(this.waiting, lane, newReceives).push(receive);
      this.postWaiting(lane);
    }
    return receive;
  }

  send(envelope: Envelope, payload: Payload): void {
    const { step } = this;
    if (step === null) {
      this.channels.send(envelope, payload);
      return;
    }
    const { peer, tag } = envelope;
    const { order, formats, mode } = step;
    const key = keyOf(envelope);
    if (mode === 'channel') {
      getOrMake(order.sent, peer, newList).push(tag);
      formats.sent.set(key, formatOf(payload, this.carries));
      this.channels.send(envelope, payload);
      return;
    }
    const lane = order.sendLanes.get(peer)?.get(tag);
    if (lane === undefined) throw this.unexpected(envelope, 'sends');
    let format = formats.sent.get(key);
    if (mode === 'announced') {
      format = formatOf(payload, this.carries);
      formats.sent.set(key, format);
      this.group.channel(peer).sendMessage(tag, { header: format as unknown as distributed.Json });
    } else {
      if (format === undefined) throw this.unexpected(envelope, 'sends');
      const changed = difference(format, payload);
      if (changed !== null) throw this.changed(envelope, changed);
      if (format.varies) this.group.channel(peer).sendMessage(tag, { header: payload.header });
    }
    const tensors = payload.tensors.filter((tensor) => tensor !== null);
    if (format.apart) this.group.channel(peer).sendMessage(tag, { tensors });
    else if (tensors.length > 0) {
      this.used.add(lane);
      lane.send(tensors);
    }
  }

  endStep(failed: boolean): void {
    const { step } = this;
    this.step = null;
    for (const { tensors } of this.onTheirWay) for (const tensor of tensors) tensor.dispose();
    this.onTheirWay.clear();
    if (step === null || failed) return;
    const { order, formats, mode } = step;
    if (!formats.isComplete)
      for (const { varies, apart } of [...formats.sent.values(), ...formats.received.values()])
        this.hasValues ||= varies || apart;
    // What was sent may be freed, and what follows may use what came, only after the lanes.
    for (const lane of this.used) lane.join();
    if (mode === 'channel') this.openLanes(order);
    formats.isComplete = true;
  }

  replayed(): void {
    const [lane] = this.lanes.values();
    lane?.mark();
  }

  forget(): void {
    for (const lane of this.lanes.values()) lane.forget();
  }

  dispose(): void {
    this.orders.clear();
    this.formats.clear();
  }

  // --- for receives -----------------------------------------------------------------------------------------------------

  /** Posts, in order, those receives of a lane whose formats are here; up to one of them also those that are not. */
  postWaiting(lane: Lane, upTo?: LaneReceive): void {
    const receives = this.waiting.get(lane) ?? [];
    let isBefore = upTo !== undefined && receives.includes(upTo);
    for (let [next] = receives; next !== undefined; [next] = receives) {
      const channel = this.group.channel(next.envelope.peer);
      if (!isBefore && !channel.has(next.envelope.tag)) return;
      const format = channel.recvMessage(next.envelope.tag).header as unknown as MessageFormat;
      this.step?.formats.received.set(keyOf(next.envelope), format);
      receives.shift();
      next.begin(format, format.header);
      if (next === upTo) isBefore = false;
    }
  }

  /** The tensors of a message on their way; null where none go over the lane. */
  start(lane: Lane, format: MessageFormat): distributed.PostedTensors | null {
    const packed = format.tensors.flatMap((tensor) => tensor ?? []);
    if (format.apart || packed.length === 0) return null;
    this.used.add(lane);
    // Whatever action is under way, it is another one that will use them.
    const posted = unscoped(() => lane.recvPacked(packed));
    this.onTheirWay.add(posted);
    return posted;
  }

  /** What was posted, in the hands of the action that uses it. */
  take(posted: distributed.PostedTensors): Tensor[] {
    posted.wait();
    this.onTheirWay.delete(posted);
    return posted.tensors.map((tensor) => {
      const own = tensor.alias();
      tensor.dispose();
      return own;
    });
  }

  /** What comes over the channel besides: a header that varies, or the whole message. */
  fetch({ peer, tag }: Envelope): { readonly tensors: readonly (Tensor | null)[]; readonly header?: unknown } {
    return this.group.channel(peer).recvMessage(tag);
  }

  // --- inside -------------------------------------------------------------------------------------------------------------

  /** Why this rank would not capture; empty where it would. */
  private obstacle(): string {
    // A recording would repeat them as they were.
    if (this.hasValues) return 'values that are no tensors of the GPU go between stages';
    return graphObstacle(this.mostLanes);
  }

  /** Both ends of every pair compare the order of their messages, and open a lane where one is missing. */
  private openLanes(order: Order): void {
    const { group } = this;
    const peers = [...new Set([...order.sent.keys(), ...order.received.keys()])].sort((a, b) => a - b);
    for (const peer of peers)
      group.sendObject([order.sent.get(peer) ?? [], order.received.get(peer) ?? []], peer, ORDERS);
    const opened: Lane[] = [];
    for (const peer of peers) {
      const [theirSent, theirReceived] = group.recvObject<[number[], number[]]>(peer, { tag: ORDERS });
      const lanesFor = (tags: Map<number, number>, sends: boolean): Map<number, Lane> =>
        new Map([...tags].map(([tag, lane]) => [tag, this.laneTo(peer, { sends, lane, opened })]));
      order.sendLanes.set(peer, lanesFor(laneOrder(order.sent.get(peer) ?? [], theirReceived), true));
      order.recvLanes.set(peer, lanesFor(laneOrder(theirSent, order.received.get(peer) ?? []), false));
    }
    for (const lane of opened) lane.ready();
    const used = new Set([...order.sendLanes.values(), ...order.recvLanes.values()].flatMap((of) => [...of.values()]));
    this.mostLanes = Math.max(this.mostLanes, used.size);
    const warning = queueWarning(used.size);
    if (warning !== null && !hasWarned) process.emitWarning(warning, { code: 'PIPEWRIGHT_QUEUES' });
    hasWarned ||= warning !== null;
    order.isComplete = true;
  }

  private laneTo(peer: number, of: { sends: boolean; lane: number; opened: Lane[] }): Lane {
    const { sends, lane, opened } = of;
    const [from, to] = sends ? [this.group.rank, peer] : [peer, this.group.rank];
    const name = `pipeline/${from}>${to}/${lane}`;
    return getOrMake(this.lanes, name, () => {
      const made = this.group.lane(peer, { name, sends });
      opened.push(made);
      return made;
    });
  }

  private unexpected({ peer, tag }: Envelope, what: 'sends' | 'receives'): PipelineError {
    return new PipelineError(
      'MESSAGES_CHANGED',
      `rank ${this.group.rank} ${what} a message (tag ${tag}, rank ${peer}) that was not there in an earlier step with the same inputs; what is sent may depend on inputs and trained parameters only: give the option messageShapes: 'announced' where it depends on values`,
    );
  }

  private changed({ peer, tag }: Envelope, what: string): PipelineError {
    return new PipelineError(
      'MESSAGES_CHANGED',
      `the message of rank ${this.group.rank} to rank ${peer} (tag ${tag}) is not what it was in an earlier step with the same inputs: ${what}. Where shapes depend on values, give all ranks the option messageShapes: 'announced'`,
    );
  }
}

/** A receive on a lane: on its way, or waiting for the format of its message. */
class LaneReceive implements PostedReceive {
  readonly envelope: Envelope;
  private readonly transport: LaneTransport;
  private readonly lane: Lane;
  private format: MessageFormat | null = null;
  private header: unknown;
  private hasHeader = false;
  private posted: distributed.PostedTensors | null = null;

  constructor(transport: LaneTransport, lane: Lane, envelope: Envelope) {
    this.transport = transport;
    this.lane = lane;
    this.envelope = envelope;
  }

  /** The format is known. */
  begin(format: MessageFormat, ...header: [unknown?]): void {
    this.format = format;
    this.hasHeader = header.length > 0 || !format.varies;
    this.header = header.length > 0 ? header[0] : format.header;
    this.posted = this.transport.start(this.lane, format);
  }

  wait(): Payload {
    if (this.format === null) this.transport.postWaiting(this.lane, this);
    const format = this.format as unknown as MessageFormat;
    if (!this.hasHeader) this.header = this.transport.fetch(this.envelope).header;
    const arrived = format.apart
      ? this.transport.fetch(this.envelope).tensors
      : this.posted === null
        ? []
        : this.transport.take(this.posted);
    let next = 0;
    return {
      tensors: format.tensors.map((known) => (known === null ? null : arrived[next++]!)),
      header: this.header as distributed.Json | undefined,
    };
  }
}

const newOrder = (): Order => ({
  sent: new Map(),
  received: new Map(),
  sendLanes: new Map(),
  recvLanes: new Map(),
  isComplete: false,
});
const newFormats = (): Formats => ({ sent: new Map(), received: new Map(), isComplete: false });
const newList = (): number[] => [];
const newReceives = (): LaneReceive[] => [];
const keyOf = ({ peer, tag }: Envelope): string => `${peer} ${tag}`;

function getOrMake<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}
