/** @file A rank's row of a lowered schedule, compiled once into the list that every step walks. */
import { type Action, formatAction, type Schedule, StageGraph } from '@pipewright/schedule';
import type { distributed } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { StageDescription, StageInput } from '../stage/wiring.ts';
import type { Place } from '../status/rank-status.ts';

/** The way from one stage to another, seen from one of them. */
export interface Link {
  /** The stage at the other end. */
  readonly stage: number;
  /** The rank that holds it. */
  readonly rank: number;
  /** The channel to that rank; null where it is this rank. */
  readonly channel: distributed.Channel | null;
  /** The stage itself, where this rank holds it. */
  readonly local: PipelineStage | null;
  /** What the later of the two stages takes of the earlier one's output. */
  readonly wanted: readonly StageInput[];
  /** First tag of the messages along this way. */
  readonly tag: number;
}

/** A stage of this rank with its ways to the others. */
export interface StageLinks {
  readonly stage: PipelineStage;
  readonly from: readonly Link[];
  readonly to: readonly Link[];
}

/** One action of the row. */
export interface PlannedAction {
  readonly kind: Action['kind'];
  readonly links: StageLinks | null;
  readonly microbatch: number;
  readonly action: Action;
  readonly slot: number;
  /** Position among all actions of the row, the parts of an overlapped one after itself. */
  readonly index: number;
  /** The parts of an overlapped action, in order. */
  readonly parts: readonly PlannedAction[];
  /** For a full backward whose gradients are sent at once, before anything else is done: the index of that action; else null. */
  readonly sending: number | null;
  /** What the rank says about itself while it does it. */
  readonly place: Place;
  /** The same while it waits for the message of a link: of `links.from` in a forward, of `links.to` in a backward. */
  readonly waits: readonly Place[];
}

/** Everything a rank needs to run steps. */
export interface Plan {
  readonly actions: readonly PlannedAction[];
  /** Forwards and their messages only: what `eval` walks. */
  readonly forwardActions: readonly PlannedAction[];
  readonly stages: readonly StageLinks[];
  /** Number of actions, parts of overlapped ones counted too. */
  readonly count: number;
}

/** Tags of one microbatch along one edge: forward and backward. */
const TAGS_PER_MESSAGE = 2;

/** Compiles the row of one rank. */
export function makePlan(
  schedule: Schedule,
  stages: readonly PipelineStage[],
  descriptions: readonly StageDescription[],
  group: distributed.ProcessGroup | null,
): Plan {
  const rank = group?.rank ?? 0;
  const local = new Map(stages.map((stage) => [stage.stageIndex, stage]));
  const graph = new StageGraph(schedule);
  const channels = new Map<number, distributed.Channel>();
  const channelTo = (peer: number): distributed.Channel | null => {
    if (peer === rank || group === null) return null;
    let channel = channels.get(peer);
    if (channel === undefined) channels.set(peer, (channel = group.channel(peer)));
    return channel;
  };
  const link = (other: number, from: number, to: number): Link => {
    const peer = schedule.stageToRank[other] as number;
    const wanted = (descriptions[to] as StageDescription).inputs.filter((input) => input.stage === from);
    const tag = firstTag(schedule, from, to);
    return { stage: other, rank: peer, channel: channelTo(peer), local: local.get(other) ?? null, wanted, tag };
  };
  const links = new Map<number, StageLinks>();
  for (const stage of stages) {
    const at = stage.stageIndex;
    const inputs = graph.inputs.subarray(graph.inputStart[at], graph.inputStart[at + 1]);
    const outputs = graph.outputs.subarray(graph.outputStart[at], graph.outputStart[at + 1]);
    links.set(at, {
      stage,
      from: Array.from(inputs, (source) => link(source, source, at)),
      to: Array.from(outputs, (destination) => link(destination, at, destination)),
    });
  }
  let count = 0;
  const compile = (action: Action, slot: number): PlannedAction => {
    const own = action.parts === null ? links.get(action.stage) : undefined;
    if (action.parts === null && own === undefined)
      throw new PipelineError(
        'BAD_SCHEDULE',
        `slot ${slot} of rank ${rank} is ${formatAction(action)}, but the rank does not hold stage ${action.stage}`,
        { rank, slot },
      );
    return {
      kind: action.kind,
      links: own ?? null,
      microbatch: action.microbatch ?? -1,
      action,
      slot,
      place: { slot, action: formatAction(action) },
      waits: waitsOf(action, slot, own),
      index: count++,
      sending: null,
      parts: (action.parts ?? []).map((part) => compile(part, slot)),
    };
  };
  const row = schedule.order[rank] ?? [];
  const actions = row
    .flatMap((action, slot) => (action === null ? [] : [compile(action, slot)]))
    .map((planned, at, all) => ({ ...planned, sending: sendingOf(all, at) }));
  const isForward = ({ kind }: PlannedAction): boolean => kind === 'F' || kind === 'SEND_F' || kind === 'RECV_F';
  const forwardActions = actions
    .flatMap((action) => (action.parts.length > 0 ? action.parts : [action]))
    .filter(isForward);
  return { actions, forwardActions, stages: [...links.values()], count };
}

/** The action that sends the gradients of a full backward, if nothing but the announcement of messages lies between. */
function sendingOf(actions: readonly PlannedAction[], at: number): number | null {
  const { kind, links, microbatch } = actions[at] as PlannedAction;
  if (kind !== 'B') return null;
  let next = at + 1;
  while (actions[next]?.kind.startsWith('RECV')) next++;
  const send = actions[next];
  return send?.kind === 'SEND_B' && send.links === links && send.microbatch === microbatch ? send.index : null;
}

/** What a rank says while an action waits for its messages. */
function waitsOf({ kind, microbatch, stage }: Action, slot: number, links: StageLinks | undefined): Place[] {
  const [sources, receive] = kind === 'F' ? [links?.from, 'RECV_F'] : [links?.to, 'RECV_B'];
  return (sources ?? []).map(({ rank }) => ({ slot, action: `${stage}${receive}${microbatch}`, waitingFor: rank }));
}

function firstTag({ stages, microbatches }: Schedule, from: number, to: number): number {
  return (from * stages + to) * microbatches * TAGS_PER_MESSAGE;
}

/** A tag for what a stage gives to ranks rather than to stages: no stage sends itself messages. */
export function ownTag(schedule: Schedule, stage: number): number {
  return firstTag(schedule, stage, stage);
}

/** Tag of the forward message of a microbatch along a link. */
export function forwardTag(link: Link, microbatch: number): number {
  return link.tag + microbatch * TAGS_PER_MESSAGE;
}

/** Tag of the backward message of a microbatch along a link. */
export function backwardTag(link: Link, microbatch: number): number {
  return link.tag + microbatch * TAGS_PER_MESSAGE + 1;
}
