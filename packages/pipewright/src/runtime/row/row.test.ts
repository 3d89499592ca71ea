/** @file The row is what runs: every cell once, every message where it stands, on any transport. */
import { buildSchedule, formatAction, lower, Schedule, scheduleDefinitions } from '@pipewright/schedule';
import { ones, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { layers, mse, WIDTH } from '../../../testing/layers.ts';
import { PipelineStage } from '../../stage/pipeline-stage.ts';
import { builtInExecutors } from '../executors.ts';
import { lossCaller } from '../options.ts';
import { ThreadOverlap } from '../overlap/thread.ts';
import type { Envelope, Payload, PostedReceive, Transport } from '../transport/transport.ts';
import { LossGrads } from './loss-grads.ts';
import { walk } from './perform.ts';
import { Plan } from './plan.ts';
import type { PlannedAction } from './planned-action.ts';
import { StepState } from './step-state.ts';

const executors = builtInExecutors(new ThreadOverlap());
const ranks = 2;

function planOf(schedule: Schedule, rank: number): { plan: Plan; stages: PipelineStage[] } {
  const stage = (index: number): PipelineStage => new PipelineStage(layers(1)[0]!, index, schedule.stages);
  const all = Array.from({ length: schedule.stages }, (_, index) => stage(index));
  const stages = schedule.stagesOf(rank).map((index) => all[index] as PipelineStage);
  const descriptions = all.map((each) => each.describe());
  return { plan: new Plan(schedule, rank, stages, descriptions), stages };
}

const cellsOf = (planned: PlannedAction): string[] =>
  planned.kind === 'B_SEND_B'
    ? [formatAction(planned.action), ...planned.parts.flatMap(cellsOf)]
    : [formatAction(planned.action)];
const isMessage = (text: string): boolean => /SEND|RECV/.test(text);
const isLocal = (text: string): boolean => /SHARD|REDUCE/.test(text);

const schedules = scheduleDefinitions
  .filter(({ hasBackward }) => hasBackward)
  .map(({ name }) => [name, lower(buildSchedule(name, { ranks, microbatches: 4 }))] as const);

describe.each(schedules)('%s', (_name, schedule) => {
  const texts = (rank: number): string[] =>
    (schedule.order[rank] ?? []).flatMap((cell) => (cell === null ? [] : [formatAction(cell)]));

  test.each([true, false])('every cell that something executes is in the row once (early gradients: %s)', (early) => {
    for (let rank = 0; rank < ranks; rank++) {
      const row = planOf(schedule, rank).plan.trainingRow({ executors, earlyGradients: early });
      const wanted = texts(rank).filter((text) => !isLocal(text));
      const found = row.flatMap(cellsOf);
      expect([...found].sort()).toEqual([...wanted].sort());
      expect(found.filter(isMessage)).toEqual(wanted.filter(isMessage));
      if (!early) expect(found).toEqual(wanted);
      expect(new Set(row.map(({ index }) => index)).size).toBe(row.length);
    }
  });

  test('kinds that nothing executes are left out, and are there once something does', () => {
    const REDUCE_GRAD = (): void => undefined;
    const row = planOf(schedule, 0).plan.trainingRow({
      executors: { ...executors, REDUCE_GRAD },
      earlyGradients: false,
    });
    expect(row.flatMap(cellsOf)).toEqual(texts(0).filter((text) => !text.includes('SHARD')));
  });

  test('a rank that waits says the slot where the receive stands that it names', () => {
    const leaves = (planned: PlannedAction): readonly PlannedAction[] =>
      planned.kind === 'OVERLAP_F_B' ? planned.parts : [planned];
    let waits = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const row = planOf(schedule, rank).plan.trainingRow({ executors, earlyGradients: true });
      for (const { kind, links, waits: places } of row.flatMap(leaves)) {
        const others = kind === 'F' ? links.from : ['B', 'B_SEND_B', 'I'].includes(kind) ? links.to : [];
        others.forEach(({ local }, i) => {
          if (local !== null) return;
          const { slot, action } = places[i]!;
          expect(formatAction(schedule.at(rank, slot!)!)).toBe(action);
          waits++;
        });
      }
    }
    expect(waits).toBeGreaterThan(0);
  });

  test('receives are posted and sends sent in the order of the row, and every posted receive is taken', () => {
    for (let rank = 0; rank < ranks; rank++) {
      const { plan, stages } = planOf(schedule, rank);
      const transport = new LoggingTransport();
      const step = stepOn(transport, stages, schedule.microbatches);
      scope(() => walk(plan.trainingRow({ executors, earlyGradients: true }), step));
      expect(transport.log).toEqual(
        texts(rank)
          .filter(isMessage)
          .map((text) => (text.includes('RECV') ? 'post' : 'send')),
      );
      expect(transport.waiting).toBe(0);
      expect(step.posted.filter((posted) => posted !== undefined)).toEqual([]);
      expect(step.outgoing.filter((values) => values !== undefined)).toEqual([]);
      expect(stages.map((stage) => stage.inFlight)).toEqual(stages.map(() => 0));
    }
  });
});

test('a full backward and the send behind it are one action, receives between them come first', () => {
  const order = [
    ['0F0', '0SEND_F0', '0F1', '0SEND_F1', '0RECV_B0', '0B0', '0RECV_B1', '0B1'],
    ['1RECV_F0', '1F0', '1B0', '1RECV_F1', '1SEND_B0', '1F1', '1B1', '1SEND_B1'],
  ];
  const schedule = Schedule.from({ name: 'hand-made', order });
  const row = planOf(schedule, 1).plan.trainingRow({ executors, earlyGradients: true });
  expect(row.map(({ kind, microbatch }) => `${kind}${microbatch}`)).toEqual([
    'RECV_F0',
    'F0',
    'RECV_F1',
    'B_SEND_B0',
    'F1',
    'B_SEND_B1',
  ]);
});

/** Gives every receive a tensor of ones, and writes down what it is asked for. */
class LoggingTransport implements Transport {
  readonly way = 'into a log';
  readonly carriesRefusals = true;
  readonly log: string[] = [];
  waiting = 0;

  post(_envelope: Envelope, like?: readonly Tensor[]): PostedReceive {
    this.log.push('post');
    this.waiting++;
    return {
      wait: () => {
        this.waiting--;
        return { tensors: like?.map((tensor) => ones(tensor.shape, { dtype: 'float64' })) ?? [rows()] };
      },
    };
  }

  send(_envelope: Envelope, { tensors }: Payload): void {
    this.log.push('send');
    for (const tensor of tensors) expect(tensor?.shape).toEqual([1, WIDTH]);
  }
}

const rows = (): Tensor => ones([1, WIDTH], { dtype: 'float64' });

function stepOn(transport: Transport, stages: readonly PipelineStage[], microbatches: number): StepState {
  const perMicrobatch = <T>(value: T): T[] => Array.from({ length: microbatches }, () => value);
  const holdsFirst = stages.some((stage) => stage.isFirst);
  return new StepState(
    {
      rank: 0,
      options: {},
      loss: lossCaller(mse),
      transport,
      parallel: null,
      recorder: null,
      hooks: [],
      mayRefuse: true,
      random: null,
      received: () => undefined,
    },
    {
      training: true,
      batch: {
        args: perMicrobatch(holdsFirst ? [rows()] : []),
        kwargs: perMicrobatch({}),
        target: perMicrobatch(rows()),
        sizes: perMicrobatch(1),
      },
      options: { returnOutputs: false },
      weights: { values: perMicrobatch(1 / microbatches), from: 'rows', equal: 1 / microbatches },
    },
    new LossGrads(),
  );
}
