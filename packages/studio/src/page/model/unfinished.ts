/** @file A step that has not ended: what every rank has done of it, where it is, and for whom it waits. */
import {
  type Action,
  formatAction,
  type LivePlace,
  type LiveProgress,
  type LiveStatus,
  plural,
  type RecordedAction,
  type Schedule,
} from '@pipewright/schedule';
import { actionsOfRank, type RecordedPlace, recordedPlaces } from '@pipewright/schedule/internal';
import { type Lanes, lanesOf } from './lanes.ts';
import type { CellPlace } from './links.ts';
import { pictureOfActions } from './recorded.ts';

/** Where a rank is in the step. */
export interface Standing {
  readonly rank: number;
  /** The number of the training step, or of the evaluation. */
  readonly step: number;
  readonly evaluates: boolean;
  /** Actions that have ended, of so many. */
  readonly done: number;
  readonly count: number;
  /** What is under way, where something is, and its cell in the picture. */
  readonly action: string | null;
  readonly cell: CellPlace | null;
  readonly waitingFor: number | 'all' | null;
  /** The step of the rank has ended: it is outside of it. */
  readonly ended: boolean;
}

/** The step under way, as it was at one moment. Times are milliseconds from the beginning of the first rank's step. */
export interface UnfinishedStep {
  readonly lanes: Lanes;
  readonly standings: readonly Standing[];
}

/** The step under way that a status tells of; null where it tells none. */
export function unfinishedStep(schedule: Schedule | null, status: LiveStatus | null): UnfinishedStep | null {
  const progress = (status?.progress ?? []).filter(({ rank }) => schedule !== null && rank < schedule.ranks);
  if (schedule === null || status === null || progress.length === 0) return null;
  const zero = Math.min(...progress.map(({ origin, begin }) => origin + begin));
  const until = endOf(progress, status) - zero;
  const actions: RecordedAction[] = [];
  const standings = progress.map((one): Standing => {
    const row = new UnfinishedRow(schedule, one, {
      shift: one.origin - zero,
      until,
      place: status.places.find(({ rank }) => rank === one.rank) ?? null,
    });
    actions.push(...row.actions);
    return row.standing;
  });
  return { lanes: lanesOf(pictureOfActions(schedule, actions, until)), standings };
}

/** When the step stopped, on the clock of all ranks: when the first rank noticed a failure, else the moment of the status. */
function endOf(progress: readonly LiveProgress[], { clock, ended }: LiveStatus): number {
  const last = Math.max(
    ...progress.map(
      ({ origin, start, ready, stop, begin, end }) =>
        origin + [...start, ...ready, ...stop].reduce((a, b) => Math.max(a, b), Math.max(begin, end)),
    ),
  );
  const noticed = progress.flatMap(({ origin, failed }) => (failed < 0 ? [] : [origin + failed]));
  if (noticed.length > 0) return Math.max(last, Math.min(...noticed));
  return ended === null ? Math.max(last, clock ?? last) : last;
}

/** One rank's part. */
class UnfinishedRow {
  readonly actions: RecordedAction[];
  readonly standing: Standing;

  constructor(
    schedule: Schedule,
    progress: LiveProgress,
    { shift, until, place }: { readonly shift: number; readonly until: number; readonly place: LivePlace | null },
  ) {
    const { rank, step, training, from, end } = progress;
    const places = recordedPlaces(schedule.order[rank] ?? []);
    // Where the first rank's clock begins, rounding must not make a moment negative, which means that it has not come.
    const move = (time: number): number => (time < 0 ? -1 : Math.max(0, time + shift));
    const column = (times: readonly number[]): number[] =>
      places.map(({ index }) => move(index < from ? -1 : (times[index - from] ?? -1)));
    const [start, ready, stop] = [column(progress.start), column(progress.ready), column(progress.stop)];
    const isOpen = ({ index }: RecordedPlace): boolean => end < 0 && start[index]! >= 0 && stop[index]! < 0;
    // The innermost of those under way.
    const open = places.findLast(isOpen) ?? null;
    // Nothing has come yet of what it receives: it waits.
    const wanted = open === null || ready[open.index]! >= 0 ? null : receiveOf(open.action);
    const receive = places.find(({ action }) => formatAction(action) === wanted);
    const waits = receive !== undefined;
    for (const one of places.filter(isOpen)) {
      if (one === open && waits) ready[one.index] = Math.max(start[one.index]!, until);
      stop[one.index] = Math.max(start[one.index]!, ready[one.index]!, until);
    }
    const none = start.map(() => 0);
    const record = { start, ready, stop, bytes: none, tensors: none };
    this.actions = actionsOfRank(
      places,
      { ...record, begin: 0, end: 0, processBytes: 0, deviceBytes: null },
      rank,
    ).filter((one) => one.end > one.start);
    const counted = places.filter(({ action, isPart }) => !isPart && isCompute(action, training));
    const isDone = ({ index }: RecordedPlace): boolean =>
      end >= 0 || index < from || (start[index]! >= 0 && index !== open?.index && progress.stop[index - from]! >= 0);
    const cell = receive ?? open;
    this.standing = {
      rank,
      step,
      evaluates: !training,
      done: counted.filter(isDone).length,
      count: counted.length,
      action: open === null ? null : formatAction((receive ?? open).action),
      cell: cell === null ? null : { rank, slot: cell.slot },
      waitingFor: waits ? (place?.waitingFor ?? senderOf(schedule, receive?.action)) : null,
      ended: end >= 0,
    };
  }
}

/** The text of the receive that an action may wait for. */
function receiveOf({ kind, stage, microbatch }: Action): string {
  return `${stage}${kind === 'F' ? 'RECV_F' : 'RECV_B'}${microbatch}`;
}

/** The rank that sends what a receive waits for; a rank that failed no longer says it. */
function senderOf({ stageEdges, stageToRank }: Schedule, receive: Action | undefined): number | null {
  if (receive === undefined) return null;
  const { kind, stage } = receive;
  const others = stageEdges.flatMap(([a, b]) => (kind === 'RECV_F' ? (b === stage ? a : []) : a === stage ? b : []));
  const ranks = others.map((other) => stageToRank[other]!).filter((rank) => rank !== stageToRank[stage]);
  return ranks[0] ?? null;
}

function isCompute({ kind }: Action, training: boolean): boolean {
  return kind === 'F' || (training && ['B', 'I', 'W', 'OVERLAP_F_B'].includes(kind));
}

/** Ranks that are named one by one; of more, the table tells. */
const mostNamed = 8;

/** What the ranks have done of the step, in words, those that wait for nobody first; `isOver`: the job has ended. */
export function sayUnfinished({ standings }: UnfinishedStep, isOver: boolean): string[] {
  const named = standings.toSorted((a, b) => Number(a.waitingFor !== null) - Number(b.waitingFor !== null));
  const more = named.length - mostNamed;
  return [
    ...named.slice(0, mostNamed).map((standing) => sayStanding(standing, isOver)),
    ...(more > 0 ? [`Where the other ${plural(more, 'rank')} ${isOver ? 'were' : 'are'} is in the table below.`] : []),
  ];
}

function sayStanding(standing: Standing, isOver: boolean): string {
  const { rank, evaluates, done, count, action, waitingFor, ended } = standing;
  const step = `${evaluates ? 'evaluation' : 'step'} ${standing.step}`;
  if (ended) return `Rank ${rank} ${isOver ? 'had ended' : 'has ended'} ${step}.`;
  const whom = waitingFor === 'all' ? 'all others' : `rank ${waitingFor}`;
  const [was, waited] = isOver ? ['was in', 'waited for'] : ['is in', 'waits for'];
  const where =
    action === null ? '' : waitingFor === null ? `, and ${was} ${action}` : `, and ${waited} ${whom} (${action})`;
  return `Rank ${rank} ${isOver ? 'had done' : 'has done'} ${done} of ${count} actions of ${step}${where}.`;
}

/** One action of the step, in words. */
export function sayUnfinishedAction({ lanes, standings }: UnfinishedStep, { rank, slot }: CellPlace): string | null {
  const action = lanes.picture.schedule.at(rank, slot);
  const lane = lanes.lanes[rank];
  if (action === null || lane === undefined) return null;
  const standing = standings.find((one) => one.rank === rank);
  for (const track of [lane.main, lane.beside]) {
    const at = track?.slot.indexOf(slot) ?? -1;
    if (track === null || at < 0) continue;
    const [start, end] = [track.start[at]!.toFixed(2), track.end[at]!.toFixed(2)];
    const isOpen = standing?.cell?.slot === slot;
    return `${formatAction(action)} on rank ${rank}: ${isOpen ? `since ${start} ms, not finished` : `${start} to ${end} ms`}.`;
  }
  return null;
}
