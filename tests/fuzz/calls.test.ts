/** @file A sample of the random calls of public functions; all 30,000: `node tests/fuzz/calls.mjs`. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import * as schedule from '@pipewright/schedule';
import * as torch from '@pipewright/torch';
import * as pipewright from 'pipewright';
import { allowTypeScript } from 'pipewright/launch';
import { describe, expect, test } from 'vitest';

test('3,000 random calls of public functions end in a result or in an error with a code', () => {
  const program = fileURLToPath(new URL('calls.mjs', import.meta.url));
  const run = spawnSync(process.execPath, [program, '--calls', '3000', '--seed', '12'], {
    encoding: 'utf8',
    timeout: 500_000,
  });
  const [last = '', ...problems] = run.stdout.trimEnd().split('\n').reverse();
  expect(problems, `repeat one with --from NUMBER --calls 1 --seed 12\n${run.stderr}`).toEqual([]);
  expect(last).toMatch(/^3000 calls, seed 12: .*, 0 different problems$/);
  const { returned, refused } = JSON.parse(/\{.*\}/.exec(last)?.[0] ?? '{}') as Record<string, number>;
  expect(returned).toBeGreaterThan(300); // the functions were called, and not all calls were wrong
  expect(refused).toBeGreaterThan(1500);
});

describe('what a longer search has found is refused with a code', () => {
  const odd: readonly unknown[] = [Symbol('s'), Object.create(null), [Symbol('t')], null, 1n];
  const simulation = (): schedule.Simulation =>
    schedule.simulate(schedule.buildSchedule('1F1B', { ranks: 2, microbatches: 2 }));
  const calls: Readonly<Record<string, (value: never) => unknown>> = {
    'Sequential.at': (value) => new torch.nn.Sequential(new torch.nn.ReLU()).at(value),
    backwardInputsFirst: (value) => torch.backwardInputsFirst(torch.ones([1], { requiresGrad: true }), value),
    dtypeOfCode: (value) => torch.dtypeOfCode(value),
    'Generator.setState': (value) => new torch.Generator().setState(value),
    'Tensor.cuda': (value) => torch.ones([2]).cuda(value),
    'Tensor.stride': (value) => torch.ones([2]).stride(value),
    'Tensor.to': (value) => torch.ones([2]).to(value, 'cpu' as never),
    'Parameter.become': (value) => new torch.nn.Parameter(torch.ones([2])).become(value),
    'Parameter.swap': (value) => new torch.nn.Parameter(torch.ones([2])).swap(value),
    gaussianNllLoss: (value) => torch.nn.functional.gaussianNllLoss(torch.ones([2]), torch.ones([2]), value),
    gradgradcheck: (value) =>
      torch.gradgradcheck(() => value, [torch.ones([1], { dtype: 'float64', requiresGrad: true })]),
    ...Object.fromEntries(
      ['sendObject', 'recvObject', 'broadcastObject', 'allGatherObject', 'barrier'].map((name) => [
        `distributed.${name}`,
        (value: never) => {
          const options = { group: value ?? 3 };
          const given = { sendObject: [{}, 0], recvObject: [0], broadcastObject: [{}, 0], allGatherObject: [{}] };
          const call = Reflect.get(torch.distributed, name) as (...all: unknown[]) => unknown;
          return call(...((Reflect.get(given, name) as unknown[] | undefined) ?? []), options);
        },
      ]),
    ),
    GroupNorm: (value) => new torch.nn.GroupNorm(2, value),
    groupNorm: (value) => torch.nn.functional.groupNorm(torch.ones([2, 2]), value),
    'init.sparse_': (value) => torch.nn.init.sparse_(torch.ones([2, 2]), value ?? 2),
    multiHeadAttentionForward: (value) =>
      torch.nn.functional.multiHeadAttentionForward(torch.ones([2, 2]), torch.ones([2, 2]), torch.ones([2, 2]), value),
    Optimizer: (value) =>
      Reflect.construct(torch.optim.Optimizer, [{ name: value, defaults: {} }, [torch.ones([2])], {}]) as unknown,
    SyncBatchNorm: (value) => new torch.nn.SyncBatchNorm(2, { processGroup: value ?? 3 }),
    'launch.allowTypeScript': (value) => allowTypeScript(value),
    fileStore: (value) => torch.distributed.fileStore('x', value),
    'MappedFile.open': (value) => torch.MappedFile.open(value),
    'Simulation.endOf': (value) => simulation().endOf(0, value),
    'Simulation.startOf': (value) => simulation().startOf(value, 0),
    'Simulation.at': (value) => simulation().at(value, 0),
    'Schedule.at': (value) => simulation().schedule.at(0, value),
  };
  test.each(Object.keys(calls))('%s', (name) => {
    for (const value of odd)
      expect(() => calls[name]?.(value as never), String(Object.prototype.toString.call(value))).toThrow(
        expect.objectContaining({ code: expect.stringMatching(/^[A-Z_]+$/) }),
      );
  });

  test('arrays with places that were never filled', () => {
    const empty = new Array<never>(3);
    expect(() => new pipewright.PipelineRuntime(empty, 'GPipe', { microbatches: 2 })).toThrow(
      expect.objectContaining({ code: 'BAD_INPUT' }),
    );
    expect(() => pipewright.formatDigest(empty)).toThrow(expect.objectContaining({ code: 'BAD_ARGUMENT' }));
    expect(torch.scope(() => torch.keep(empty))).toBe(empty);
  });
});
