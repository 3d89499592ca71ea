/**
 * @file Messages between ranks that are threads of one process, whose steps are captured together: what all ranks do on a GPU
 * becomes one graph, in which a message is an edge. All ranks must record and replay the same steps, so they compare what they
 * are given.
 */
import type { distributed } from '@pipewright/torch';
import type { StepCall } from './call.ts';
import { ChannelTransport } from './channels.ts';
import { compareSteps, exchange, firstProblem } from './compare.ts';
import { JointGraph } from './joint-graph.ts';
import type { Agreement, Envelope, Payload, PostedReceive, StepGraph, StepSignature, Transport } from './transport.ts';
import { hasValues } from './values.ts';

/** Moves payloads between threads whose steps are captured together. */
export class ThreadTransport implements Transport {
  readonly way = 'over channels, in steps that are captured';
  readonly carriesRefusals = true;
  private readonly group: distributed.ProcessGroup;
  private readonly device: string;
  private readonly channels: ChannelTransport;
  /** The graph that was made last. */
  private graph: JointGraph | null = null;
  /** Where all ranks compute, from the first step on. */
  private devices: readonly string[] | null = null;
  /** Whether more than tensors goes between the stages. */
  private sendsValues = false;

  constructor(group: distributed.ProcessGroup, device: string) {
    this.group = group;
    this.device = device;
    this.channels = new ChannelTransport(group);
  }

  agree(signature: StepSignature): Agreement {
    const devices = (this.devices ??= exchange(this.group, this.device) as string[]);
    const capture = signature.capture === '' ? this.obstacle(devices) : signature.capture;
    const { key, captureProblem } = compareSteps(this.group, { ...signature, capture });
    return { key, isKnown: true, captureProblem };
  }

  compare(problem: string | null): string | null {
    return firstProblem(this.group, problem);
  }

  makeGraph(): StepGraph {
    return (this.graph = this.newGraph(this.group));
  }

  beginStep(call: StepCall): void {
    this.current.beginStep(call);
  }

  post(envelope: Envelope): PostedReceive {
    return this.current.post(envelope);
  }

  send(envelope: Envelope, payload: Payload): void {
    this.sendsValues ||= hasValues(payload.header);
    this.current.send(envelope, payload);
  }

  /** What a test puts a device of its own into. */
  protected newGraph(group: distributed.ProcessGroup): JointGraph {
    return new JointGraph(group);
  }

  private get current(): ChannelTransport {
    return this.graph?.messages ?? this.channels;
  }

  /** Why this rank would not capture; empty where it would. */
  private obstacle(devices: readonly string[]): string {
    const other = devices.find((device) => device !== this.device);
    if (other !== undefined)
      return `the threads compute on several GPUs (${this.device}, ${other}), which one graph does not hold; processes with NCCL can be captured there`;
    return this.sendsValues ? 'values that are no tensors of the GPU go between stages' : '';
  }
}
