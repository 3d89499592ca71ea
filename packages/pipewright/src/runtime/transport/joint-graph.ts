/**
 * @file One CUDA graph of what several ranks do, where they are threads of one process and share a GPU. The first rank records;
 * the streams of the others join by taking a tensor from it, and come back by giving one. In between every rank does its step as
 * always: messages between threads order their streams, and that is what the edges of the graph are made of. A replay is one call
 * of the first rank, before which all have said that their inputs are there.
 *
 * What ranks send each other while they record goes over a group made for that. Where one of them fails, it aborts that group, so
 * that nobody waits for it any longer; the group of the pipeline has heard of nothing.
 */
import { cuda, type distributed, ones, type Tensor, TorchError, unscoped } from '@pipewright/torch';
import { JOINT_TAG } from '../../base/tags.ts';
import { ChannelTransport } from './channels.ts';
import { firstProblem, GIVEN_UP } from './compare.ts';
import type { StepGraph } from './transport.ts';

/** What a graph is made with: CUDA's own, or what a test has. */
export interface GraphDevice {
  /** Records what `body` does, and what streams do that join in it. */
  readonly graph: StepGraph;
  /** Runs `body` in a stream that has nothing to do. */
  inSideStream<T>(body: () => T): T;
  /** Something that streams of this device can be ordered by. */
  token(): Tensor;
}

/** What a rank did, and what went wrong. */
interface Part<T> {
  readonly value?: T;
  readonly problem: string | null;
}

/** A graph that all ranks of a group of threads record and replay together. */
export class JointGraph implements StepGraph {
  /** What carries the messages of a step while it is recorded; null at other times. */
  messages: ChannelTransport | null = null;
  private readonly group: distributed.ProcessGroup;
  /** For the time of the recording. */
  private readonly recorders: distributed.ProcessGroup;
  private readonly device: GraphDevice;
  /** Lives as long as the graph, which has its marks. */
  private readonly token: Tensor;

  /** All ranks make theirs together. */
  constructor(group: distributed.ProcessGroup, device?: GraphDevice) {
    this.group = group;
    this.recorders = group.newGroup([...Array(group.size).keys()], { name: 'recording' })!;
    try {
      this.device = device ?? cudaDevice();
      this.token = unscoped(() => this.device.token());
    } catch (error) {
      this.recorders.close();
      throw error;
    }
  }

  /** All ranks come here together. Where it fails on one of them, it throws on all, with what went wrong first. */
  capture<T>(body: () => T): T {
    this.messages = new ChannelTransport(this.recorders);
    try {
      const { value, problem } = this.group.rank === 0 ? this.lead(body) : this.follow(body);
      if (problem !== null) throw new Error(problem);
      return value as T;
    } finally {
      this.messages = null;
    }
  }

  replay(): void {
    const { group } = this;
    if (group.rank === 0) {
      for (const peer of this.others()) take(group, peer);
      this.device.graph.replay();
      for (const peer of this.others()) this.give(group, peer);
    } else {
      this.give(group, 0);
      take(group, 0);
    }
  }

  reset(): void {
    if (this.group.rank === 0) this.device.graph.reset();
    this.token.dispose();
    this.recorders.close();
  }

  private lead<T>(body: () => T): Part<T> {
    const { recorders } = this;
    let part: Part<T> | null = null;
    const whole = attempt(() =>
      this.device.graph.capture(
        () => {
          part = this.end(
            attempt(() => {
              for (const peer of this.others()) this.give(recorders, peer);
              const value = body();
              for (const peer of this.others()) take(recorders, peer);
              return value;
            }),
          );
          if (part.problem !== null) throw new Error(part.problem); // only so is it not a graph
        },
        { warmup: 0 },
      ),
    );
    part ??= this.end<T>({ problem: whole.problem }); // it has not begun
    return this.end({ ...part, problem: part.problem ?? whole.problem });
  }

  private follow<T>(body: () => T): Part<T> {
    const { recorders } = this;
    return this.device.inSideStream(() => {
      const part = attempt(() => {
        take(recorders, 0);
        const value = body();
        this.give(recorders, 0);
        return value;
      });
      return this.end(this.end(part)); // until the first rank has ended it too, the recording holds this stream
    });
  }

  /** All ranks have come so far, and know whether one of them has failed. */
  private end<T>(part: Part<T>): Part<T> {
    if (part.problem !== null) this.recorders.abort(GIVEN_UP);
    return { ...part, problem: firstProblem(this.group, part.problem) };
  }

  private others(): number[] {
    return Array.from({ length: this.group.size - 1 }, (_, i) => i + 1);
  }

  /** What the other rank does on the GPU after `take` waits for what this one has done. */
  private give(group: distributed.ProcessGroup, peer: number): void {
    group.channel(peer).sendMessage(JOINT_TAG, { tensors: [this.token] });
  }
}

function take(group: distributed.ProcessGroup, peer: number): void {
  for (const tensor of group.channel(peer).recvMessage(JOINT_TAG).tensors) tensor?.dispose();
}

function attempt<T>(body: () => T): Part<T> {
  try {
    return { value: body(), problem: null };
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    return { problem: isConsequence(error) ? `${GIVEN_UP}: ${text}` : text };
  }
}

/** Whether an error says that another rank has failed. */
function isConsequence(error: unknown): boolean {
  if (error instanceof TorchError && ['ABORTED', 'PEER_LOST'].includes(error.code)) return true;
  return error instanceof Error && isConsequence(error.cause);
}

/** CUDA's own graphs. The threads of other ranks do in a recording what only relaxed ones allow. */
function cudaDevice(): GraphDevice {
  const graph = new cuda.CudaGraph();
  return {
    graph: {
      capture: (body, options) => graph.capture(body, { ...options, captureErrorMode: 'relaxed' }),
      replay: () => graph.replay(),
      reset: () => graph.reset(),
    },
    inSideStream: (body) => {
      const [current, side] = [cuda.currentStream(), cuda.captureStream()];
      side.waitStream(current);
      const value = cuda.withStream(side, body);
      current.waitStream(side);
      return value;
    },
    token: () => ones([1], { device: 'cuda' }),
  };
}
