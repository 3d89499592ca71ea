/** @file The rules that hold cell by cell: ranges, placement, counts, order within a rank, messages, shards. */

import { hasMessages as anyMessages, bits } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { Peer, StageGraph } from '../model/stage-graph.ts';
import type { ValidationRule, ViolationList } from './violation.ts';

// Constants of this module: an import is looked up at every use.
const { Code, fieldIn, stageIn, wordCode } = bits;

/** What has been seen of a (stage, microbatch), one bit each. */
const Seen = { F: 1, I: 2, W: 4, B: 8, SendF: 16, RecvF: 32, SendB: 64, RecvB: 128 } as const;

const gradient = Seen.I | Seen.B;

/**
 * Per code: its bit, then what must not have been seen before it (from bit 8), then for sends what they send, one of
 * which must have been seen (from bit 16). 0 for codes without microbatch.
 */
const ruleOf = new Int32Array(16);
ruleOf[Code.F] = Seen.F | (Seen.F << 8);
ruleOf[Code.I] = Seen.I | ((Seen.I | Seen.B) << 8);
ruleOf[Code.W] = Seen.W | ((Seen.W | Seen.B) << 8);
ruleOf[Code.B] = Seen.B | ((Seen.I | Seen.W | Seen.B) << 8);
ruleOf[Code.SendF] = Seen.SendF | (Seen.SendF << 8) | (Seen.F << 16);
ruleOf[Code.RecvF] = Seen.RecvF | (Seen.RecvF << 8);
ruleOf[Code.SendB] = Seen.SendB | (Seen.SendB << 8) | (gradient << 16);
ruleOf[Code.RecvB] = Seen.RecvB | (Seen.RecvB << 8);
const bitOf = Uint8Array.from(ruleOf, (rule) => rule & 255);
/** In `needs`: the order on the own rank has to be looked at, too. */
const localOrder = 256;
const backwards = Seen.I | Seen.W | Seen.B;
const messages = Seen.SendF | Seen.RecvF | Seen.SendB | Seen.RecvB;

/** Sharding of a stage so far. */
const Shard = { Unknown: 0, Unsharded: 1, Sharded: 2 } as const;

/** One pass over all cells and one over all (stage, microbatch) pairs. */
export class CellCheck {
  /** Whether there is any send or receive. */
  readonly hasMessages: boolean;
  /** The first action that is not compute. */
  other: { readonly rank: number; readonly slot: number } | null = null;
  private readonly schedule: Schedule;
  private readonly violations: ViolationList;
  private readonly graph: StageGraph;
  private readonly seen: Uint8Array;
  private readonly inPeer: Int32Array;
  private readonly outPeer: Int32Array;
  /** Whether a stage has an input (an output) on its own rank. */
  private readonly localIn: Uint8Array;
  private readonly localOut: Uint8Array;
  /** What must have been seen before a forward (at 2 * stage) and before a backward (at 2 * stage + 1). */
  private readonly needs: Uint16Array;
  /** Whether a stage may compute without a closer look: it is unsharded, or was noted to compute without UNSHARD. */
  private readonly mayCompute: Uint8Array;
  private readonly shard: Uint8Array;
  /** First slot at which a stage computed before any UNSHARD; -1: none. */
  private readonly bareSlot: Int32Array;
  /** Slot of a stage's last RESHARD. */
  private readonly reshardSlot: Int32Array;
  private readonly backwardCount: Int32Array;
  private readonly reduced: Uint8Array;
  private readonly checkedEdges: Set<string> = new Set();
  private trains = false;
  private shards = false;
  private reduces = false;

  /** `computeOnly`: the schedule is to have no sends and receives; the first other action is noted in `other`. */
  constructor(schedule: Schedule, violations: ViolationList, options: { readonly computeOnly: boolean }) {
    const { stages, microbatches } = schedule;
    this.schedule = schedule;
    this.violations = violations;
    this.graph = new StageGraph(schedule);
    this.seen = new Uint8Array(stages * microbatches);
    this.inPeer = this.graph.peers('inputs');
    this.outPeer = this.graph.peers('outputs');
    const { graph } = this;
    this.localIn = Uint8Array.from({ length: stages }, (_, s) =>
      graph.recvForwardPeers(s).length < graph.inputStart[s + 1]! - graph.inputStart[s]! ? 1 : 0,
    );
    this.localOut = Uint8Array.from({ length: stages }, (_, s) =>
      graph.sendForwardPeers(s).length < graph.outputStart[s + 1]! - graph.outputStart[s]! ? 1 : 0,
    );
    this.hasMessages = !options.computeOnly && anyMessages(schedule.rows);
    const { hasMessages, inPeer, outPeer } = this;
    this.needs = new Uint16Array(2 * stages);
    for (let stage = 0; stage < stages; stage++) {
      const recvF = hasMessages && inPeer[stage] !== Peer.None ? Seen.RecvF : 0;
      const recvB = hasMessages && outPeer[stage] !== Peer.None ? Seen.RecvB : 0;
      this.needs[2 * stage] = recvF | (this.localIn[stage] === 1 ? localOrder : 0);
      this.needs[2 * stage + 1] = Seen.F | recvB | (this.localOut[stage] === 1 ? localOrder : 0);
    }
    this.mayCompute = new Uint8Array(stages);
    this.shard = new Uint8Array(stages);
    this.bareSlot = new Int32Array(stages).fill(-1);
    this.reshardSlot = new Int32Array(stages);
    this.backwardCount = new Int32Array(stages);
    this.reduced = new Uint8Array(stages);
  }

  run(): void {
    const { rows } = this.schedule;
    this.checkPlacementTable();
    for (let rank = 0; rank < rows.length && !this.violations.isFull; rank++) this.checkRow(rank, rows[rank]!);
    if (!this.violations.isFull) this.checkPairs();
    if (!this.violations.isFull) this.checkStages();
  }

  /** Whether a stage is on a rank that there is. */
  private isPlaced(stage: number): boolean {
    const rank = this.schedule.stageToRank[stage];
    return rank !== undefined && Number.isInteger(rank) && rank >= 0 && rank < this.schedule.ranks;
  }

  private checkPlacementTable(): void {
    const { stages, ranks, stageToRank } = this.schedule;
    for (let stage = 0; stage < stages; stage++) {
      if (this.isPlaced(stage)) continue;
      const rank = stageToRank[stage];
      const missing = rank === undefined || rank === -1;
      this.violations.add(
        missing ? 'missing' : 'placement',
        null,
        missing
          ? `stage ${stage} is on no rank; every stage of the ${stages} must be placed`
          : `stageToRank puts stage ${stage} on rank ${rank}; ranks are 0 to ${ranks - 1}`,
      );
    }
  }

  /** The common case in few tests; a cell that fails one of them is looked at closely by `checkLeaf`. */
  private checkRow(rank: number, row: Int32Array): void {
    const { layout, stages, microbatches } = this.schedule;
    const { stageShift, microbatchMask } = layout;
    const { seen, mayCompute, needs, backwardCount, hasMessages } = this;
    const { rankOf } = this.graph;
    let trains = false;
    for (let slot = 0; slot < row.length; slot++) {
      const word = row[slot]!;
      if (word === 0) continue;
      const code = wordCode(word);
      const rule = ruleOf[code]!;
      const stage = stageIn(word, stageShift);
      const microbatch = fieldIn(word, microbatchMask) - 1;
      if (rule !== 0 && stage < stages && rankOf[stage] === rank && microbatch >>> 0 < microbatches) {
        const key = stage * microbatches + microbatch;
        const before = seen[key]!;
        if (code >= Code.SendF) {
          const made = rule >>> 16;
          if ((before & (rule >>> 8) & 255) === 0 && (made === 0 || (before & made) !== 0) && hasMessages) {
            seen[key] = before | rule; // a byte: keeps the bit only
            continue;
          }
        } else if ((before & (rule >>> 8)) === 0 && mayCompute[stage] === 1) {
          const needed = code === Code.W ? Seen.I : needs[2 * stage + (code === Code.F ? 0 : 1)]!;
          if ((before & needed) === needed) {
            seen[key] = before | rule;
            if (code !== Code.F) {
              trains = true;
              if (code !== Code.I) backwardCount[stage]!++;
            }
            continue;
          }
        }
      }
      if (code === Code.Composite) this.checkComposite(rank, slot, word);
      else {
        if (code > Code.B && this.other === null) this.other = { rank, slot };
        this.checkLeaf(rank, slot, word);
      }
    }
    if (trains) this.trains = true;
  }

  private checkComposite(rank: number, slot: number, word: number): void {
    const { composites } = this.schedule;
    const leaves = composites.leavesOf(word);
    const plain = leaves.every((leaf) => wordCode(leaf) <= Code.B);
    if (leaves.length < 2 || !plain || composites.codeOf(word) !== Code.OverlapFB) {
      this.violations.at(
        'composite',
        rank,
        slot,
        `a composite is OVERLAP_F_B of at least two plain compute actions such as (0F3;3B1)OVERLAP_F_B`,
      );
    }
    for (const leaf of leaves) this.checkLeaf(rank, slot, leaf);
  }

  private checkLeaf(rank: number, slot: number, word: number): void {
    const { layout, stages, microbatches, stageToRank } = this.schedule;
    const code = wordCode(word);
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    if (stage >= stages) {
      this.violations.at(
        'stage-range',
        rank,
        slot,
        `stage ${stage} is out of range; the schedule has stages 0 to ${stages - 1}`,
      );
      return;
    }
    if (stageToRank[stage] !== rank) {
      this.violations.at(
        'placement',
        rank,
        slot,
        `stage ${stage} belongs to rank ${stageToRank[stage]}; move the action there or change stageToRank`,
      );
      return;
    }
    const bit = bitOf[code]!;
    if (bit === 0) {
      this.checkLocalAction(rank, slot, word);
      return;
    }
    if (microbatch < 0 || microbatch >= microbatches) {
      const says = microbatch < 0 ? 'the action needs a microbatch' : `microbatch ${microbatch} is out of range`;
      this.violations.at(
        'microbatch-range',
        rank,
        slot,
        `${says}; the schedule has microbatches 0 to ${microbatches - 1}`,
      );
      return;
    }
    const key = stage * microbatches + microbatch;
    const before = this.seen[key]!;
    this.seen[key] = before | bit;
    if ((before & bit) !== 0)
      this.violations.at('duplicate', rank, slot, `${this.schedule.format(word)} occurs twice; remove one`);
    else if (bit >= Seen.SendF) this.checkMessage({ rank, slot, word, before });
    else this.checkCompute({ rank, slot, word, before });
  }

  private checkMessage(cell: { rank: number; slot: number; word: number; before: number }): void {
    const { rank, slot, word, before } = cell;
    const code = wordCode(word);
    const { layout } = this.schedule;
    const stage = layout.stage(word);
    const name = `${stage}${code === Code.SendF ? 'F' : 'B'}${layout.microbatch(word)}`;
    const made = code === Code.SendF ? Seen.F : gradient;
    if ((code === Code.SendF || code === Code.SendB) && (before & made) === 0) {
      this.violations.at(
        'send-first',
        rank,
        slot,
        `nothing to send yet: ${name} comes later or never; move the send behind it`,
      );
    }
  }

  private checkCompute(cell: { rank: number; slot: number; word: number; before: number }): void {
    const { rank, slot, word, before } = cell;
    const { layout } = this.schedule;
    const code = wordCode(word);
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    this.checkShard(rank, slot, stage);
    if (code === Code.F) {
      if (this.hasMessages && this.inPeer[stage] !== Peer.None && (before & Seen.RecvF) === 0) {
        this.violations.at(
          'receive-first',
          rank,
          slot,
          `its input comes from another rank, but ${stage}RECV_F${microbatch} is not before it`,
        );
      }
      if (this.localIn[stage] === 1) this.checkLocalOrder({ rank, slot, stage, microbatch, forward: true });
      return;
    }
    this.trains = true;
    if (code === Code.B || code === Code.W) this.backwardCount[stage]!++;
    if (code === Code.W) {
      if ((before & Seen.I) === 0)
        this.violations.at(
          'input-first',
          rank,
          slot,
          `${stage}I${microbatch} is not before it; the weight half of a backward needs the input half`,
        );
    } else {
      if ((before & Seen.F) === 0)
        this.violations.at(
          'forward-first',
          rank,
          slot,
          `${stage}F${microbatch} is not before it; move the forward ahead`,
        );
      if (this.hasMessages && this.outPeer[stage] !== Peer.None && (before & Seen.RecvB) === 0) {
        this.violations.at(
          'receive-first',
          rank,
          slot,
          `its gradient comes from another rank, but ${stage}RECV_B${microbatch} is not before it`,
        );
      }
      if (this.localOut[stage] === 1) this.checkLocalOrder({ rank, slot, stage, microbatch, forward: false });
    }
    const other = code === Code.B ? Seen.I | Seen.W : Seen.B;
    if ((before & other) !== 0) {
      this.violations.at(
        'backward-kind',
        rank,
        slot,
        `stage ${stage} microbatch ${microbatch} has a full backward (B) and a split one (I, W); keep one of them`,
      );
    }
  }

  /** Stages that feed a stage on the same rank run first; backwards the other way round. */
  private checkLocalOrder(cell: {
    rank: number;
    slot: number;
    stage: number;
    microbatch: number;
    forward: boolean;
  }): void {
    const { rank, slot, stage, microbatch, forward } = cell;
    const { graph } = this;
    const start = forward ? graph.inputStart : graph.outputStart;
    const list = forward ? graph.inputs : graph.outputs;
    for (let e = start[stage]!; e < start[stage + 1]!; e++) {
      const other = list[e]!;
      if (graph.rankOf[other] !== rank) continue;
      if ((this.seen[other * this.schedule.microbatches + microbatch]! & (forward ? Seen.F : gradient)) !== 0) continue;
      this.violations.at(
        'local-order',
        rank,
        slot,
        `it needs the ${forward ? 'output' : 'gradient'} of stage ${other} on the same rank, but ${other}${forward ? 'F' : 'B (or I)'}${microbatch} is not before it`,
      );
    }
  }

  private checkShard(rank: number, slot: number, stage: number): void {
    const state = this.shard[stage];
    if (state === Shard.Sharded)
      this.violations.at(
        'sharded',
        rank,
        slot,
        `stage ${stage} is sharded here, by ${stage}RESHARD at slot ${this.reshardSlot[stage]}; move that behind it or put ${stage}UNSHARD before it`,
      );
    else if (state === Shard.Unknown && this.bareSlot[stage]! < 0) {
      this.bareSlot[stage] = slot;
      this.mayCompute[stage] = 1;
    }
  }

  private checkLocalAction(rank: number, slot: number, word: number): void {
    const code = wordCode(word);
    const stage = this.schedule.layout.stage(word);
    if (code === Code.ReduceGrad) {
      this.reduces = true;
      if (this.reduced[stage] === 1)
        this.violations.at('reduce-grad', rank, slot, `stage ${stage} reduces its gradients twice; remove one`);
      else if (this.backwardCount[stage]! < this.schedule.microbatches) {
        this.violations.at(
          'reduce-grad',
          rank,
          slot,
          `stage ${stage} has had ${this.backwardCount[stage]} of ${this.schedule.microbatches} backwards; move it behind the last`,
        );
      }
      this.reduced[stage] = 1;
    } else if (code === Code.Unshard) {
      this.shards = true;
      if (this.shard[stage] === Shard.Unsharded)
        this.violations.at(
          'shard-state',
          rank,
          slot,
          `stage ${stage} is unsharded already; remove it or put ${stage}RESHARD before it`,
        );
      this.shard[stage] = Shard.Unsharded;
      this.mayCompute[stage] = 1;
    } else if (code === Code.Reshard) {
      this.shards = true;
      if (this.shard[stage] !== Shard.Unsharded)
        this.violations.at(
          'shard-state',
          rank,
          slot,
          `stage ${stage} is not unsharded; remove it or put ${stage}UNSHARD before it`,
        );
      this.shard[stage] = Shard.Sharded;
      this.reshardSlot[stage] = slot;
      this.mayCompute[stage] = 0;
    } else {
      this.violations.at('composite', rank, slot, `OVERLAP_F_B needs parts such as (0F3;3B1)OVERLAP_F_B`);
    }
  }

  /** Every (stage, microbatch) has all it needs and nothing without a counterpart. */
  private checkPairs(): void {
    const { stages, microbatches } = this.schedule;
    const { seen, trains } = this;
    for (let stage = 0; stage < stages; stage++) {
      if (!this.isPlaced(stage)) continue; // said once, with the placement
      let wanted: number = Seen.F;
      if (this.hasMessages) {
        if (this.outPeer[stage] !== Peer.None) wanted |= trains ? Seen.SendF | Seen.RecvB : Seen.SendF;
        if (this.inPeer[stage] !== Peer.None) wanted |= trains ? Seen.RecvF | Seen.SendB : Seen.RecvF;
      }
      const full = trains ? wanted | Seen.B : wanted;
      const split = trains ? wanted | Seen.I | Seen.W : wanted;
      for (let m = 0, key = stage * microbatches; m < microbatches; m++, key++) {
        const found = seen[key]!;
        if (found !== full && found !== split) this.explainPair(stage, m, found, wanted);
        if (this.violations.isFull) return;
      }
    }
  }

  private explainPair(stage: number, m: number, found: number, wanted: number): void {
    const rank = this.schedule.stageToRank[stage] ?? null;
    const missing = (what: string): void =>
      this.violations.add('missing', rank, `rank ${rank}: stage ${stage} has no ${what} for microbatch ${m}; add it`);
    if ((found & Seen.F) === 0) missing(`forward (${stage}F${m})`);
    if (this.trains && (found & backwards) === 0)
      missing(`backward (${stage}B${m}, or ${stage}I${m} and ${stage}W${m})`);
    else if ((found & Seen.I) !== 0 && (found & (Seen.W | Seen.B)) === 0)
      missing(`weight half of the backward (${stage}W${m})`);
    else if ((found & Seen.W) !== 0 && (found & (Seen.I | Seen.B)) === 0)
      missing(`input half of the backward (${stage}I${m})`);
    if (!this.hasMessages || (found & messages) === (wanted & messages)) return;
    const { graph } = this;
    for (const to of graph.sendForwardPeers(stage)) this.checkEdge(stage, to, m);
    for (const from of graph.recvForwardPeers(stage)) this.checkEdge(from, stage, m);
    for (const code of [Code.SendF, Code.RecvF, Code.SendB, Code.RecvB]) {
      if ((found & ~wanted & bitOf[code]!) === 0 || (!this.trains && code >= Code.SendB)) continue;
      const isSend = code === Code.SendF || code === Code.SendB;
      const says = `no stage on another rank ${isSend ? 'needs this' : 'makes this'}; remove it`;
      this.atWord(isSend ? 'unmatched-send' : 'unmatched-receive', this.schedule.layout.pack(code, stage, m), says);
    }
  }

  /** Both messages of an edge for a microbatch: sent and received, or neither. */
  private checkEdge(from: number, to: number, m: number): void {
    const { schedule, seen, checkedEdges } = this;
    const { layout, microbatches } = schedule;
    const name = `${from}/${to}/${m}`;
    if (checkedEdges.has(name)) return;
    checkedEdges.add(name);
    const a = seen[from * microbatches + m]!;
    const b = seen[to * microbatches + m]!;
    const compare = (isSent: boolean, isReceived: boolean, send: number, receive: number): void => {
      if (isSent && !isReceived)
        this.atWord(
          'unmatched-send',
          send,
          `nobody receives it; add ${schedule.format(receive)} on rank ${schedule.stageToRank[layout.stage(receive)]} or remove it`,
        );
      if (isReceived && !isSent)
        this.atWord(
          'unmatched-receive',
          receive,
          `nobody sends it; add ${schedule.format(send)} on rank ${schedule.stageToRank[layout.stage(send)]} or remove it`,
        );
    };
    compare(
      (a & Seen.SendF) !== 0,
      (b & Seen.RecvF) !== 0,
      layout.pack(Code.SendF, from, m),
      layout.pack(Code.RecvF, to, m),
    );
    compare(
      (b & Seen.SendB) !== 0,
      (a & Seen.RecvB) !== 0,
      layout.pack(Code.SendB, to, m),
      layout.pack(Code.RecvB, from, m),
    );
  }

  /** Adds a violation at the cell that holds a word. */
  private atWord(rule: ValidationRule, word: number, says: string): void {
    const rank = this.schedule.stageToRank[this.schedule.layout.stage(word)]!;
    this.violations.at(rule, rank, this.schedule.rows[rank]!.indexOf(word), says);
  }

  /** What must hold for a stage as a whole. */
  private checkStages(): void {
    const { stages, stageToRank } = this.schedule;
    for (let stage = 0; stage < stages; stage++) {
      if (!this.isPlaced(stage)) continue; // said once, with the placement
      const rank = stageToRank[stage] ?? null;
      const bare = this.bareSlot[stage]!;
      if (this.shards && bare >= 0)
        this.violations.at('sharded', rank!, bare, `stage ${stage} is sharded here; put ${stage}UNSHARD before it`);
      if (this.shards && this.shard[stage] === Shard.Unsharded)
        this.violations.add(
          'shard-state',
          rank,
          `rank ${rank}: stage ${stage} is still unsharded at the end; add ${stage}RESHARD`,
        );
      if (this.reduces && this.reduced[stage] === 0)
        this.violations.add(
          'reduce-grad',
          rank,
          `rank ${rank}: stage ${stage} never reduces its gradients while others do; add ${stage}REDUCE_GRAD behind its last backward`,
        );
    }
  }
}
