/** @file Learning rates equal PyTorch's, step by step; testdata/nn/lr-schedules.json is what PyTorch gave. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { ones, optim, Tensor, tensor, zeros } from '../../index.ts';

type Part = readonly [string, readonly unknown[], object];

interface Case {
  readonly schedule: string;
  readonly args: readonly unknown[];
  readonly options: object;
  readonly optimizer: 'SGD' | 'Adam';
  readonly groups: number;
  readonly rates: readonly (readonly number[])[];
  readonly momenta: readonly (readonly number[])[];
  readonly metrics: readonly number[] | null;
  readonly last: readonly number[];
  readonly lambda?: string;
  readonly parts?: readonly Part[];
  readonly milestones?: readonly number[];
}

interface Schedule {
  step(metric?: number): void;
  getLastLr(): number[];
  stateDict(): optim.ScheduleState;
  loadStateDict(state: optim.ScheduleState): void;
}

const cases = JSON.parse(
  readFileSync(new URL('../../../../../testdata/nn/lr-schedules.json', import.meta.url), 'utf8'),
) as Case[];
const lambdas: Readonly<Record<string, (epoch: number) => number>> = {
  '0.95 ** epoch': (epoch) => 0.95 ** epoch,
  '1 / (1 + epoch)': (epoch) => 1 / (1 + epoch),
};

function optimizerOf(item: Pick<Case, 'optimizer' | 'groups'>): optim.Optimizer {
  const groups = Array.from({ length: item.groups }, (_, i) => ({
    params: [zeros([1]).requiresGrad_()],
    lr: 0.1 * (i + 1),
  }));
  return item.optimizer === 'SGD'
    ? new optim.SGD(groups, { lr: 0.1, momentum: 0.9 })
    : (new optim.Adam(groups, { lr: 0.1 }) as optim.Optimizer);
}

function make(optimizer: optim.Optimizer, name: string, args: readonly unknown[]): Schedule {
  const type = (optim as unknown as Record<string, new (...args: unknown[]) => Schedule>)[name];
  return new (type as new (...args: unknown[]) => Schedule)(
    ...(name === 'ChainedScheduler' ? args : [optimizer, ...args]),
  );
}

function scheduleOf(item: Case, optimizer: optim.Optimizer): Schedule {
  const parts = item.parts?.map(([name, args, options]) => make(optimizer, name, [...args, options]));
  if (parts !== undefined)
    return make(optimizer, item.schedule, item.milestones === undefined ? [parts] : [parts, item.milestones]);
  return make(optimizer, item.schedule, [
    ...(item.lambda === undefined ? item.args : [lambdas[item.lambda]]),
    item.options,
  ]);
}

const rates = (optimizer: optim.Optimizer): number[] =>
  optimizer.paramGroups.map(({ lr }) => (lr instanceof Tensor ? lr.item() : lr));

function closeTo(got: readonly number[], want: readonly number[] | undefined): void {
  got.forEach((value, i) => expect(Math.abs(value - want![i]!)).toBeLessThanOrEqual(1e-14 * Math.abs(value)));
}

describe.each(cases.map((item, i) => [`${i} ${item.schedule} ${JSON.stringify(item.options)}`, item] as const))(
  '%s',
  (_, item) => {
    test('rates and momenta', () => {
      const optimizer = optimizerOf(item);
      const schedule = scheduleOf(item, optimizer);
      closeTo(rates(optimizer), item.rates[0]);
      for (let step = 1; step < item.rates.length; step++) {
        schedule.step(item.metrics?.[step - 1]);
        closeTo(rates(optimizer), item.rates[step]);
        const momenta = optimizer.paramGroups.map(
          (group) => (group['momentum'] ?? (group['betas'] as number[])[0]) as number,
        );
        closeTo(momenta, item.momenta[step - 1]);
      }
      closeTo(schedule.getLastLr(), item.last);
    });

    test('goes on from a saved state', () => {
      const [a, b] = [optimizerOf(item), optimizerOf(item)];
      const [first, second] = [scheduleOf(item, a), scheduleOf(item, b)];
      for (let step = 0; step < 7; step++) first.step(item.metrics?.[step]);
      second.loadStateDict(JSON.parse(JSON.stringify(first.stateDict())) as optim.ScheduleState);
      b.loadStateDict(a.stateDict());
      for (let step = 7; step < 15; step++) {
        first.step(item.metrics?.[step]);
        second.step(item.metrics?.[step]);
        expect(rates(b)).toEqual(rates(a));
      }
    });
  },
);

test('a rate that is a tensor is changed in place', () => {
  const rate = tensor(0.5, { dtype: 'float32' });
  const optimizer = new optim.SGD([ones([1]).requiresGrad_()], { lr: rate });
  const schedule = new optim.StepLR(optimizer, 1, { gamma: 0.5 });
  schedule.step();
  expect([rate.item(), optimizer.paramGroups[0]?.lr === rate]).toEqual([0.25, true]);
});

test('functions that give no numbers are refused, and no rate is changed', () => {
  const optimizer = new optim.SGD([ones([1]).requiresGrad_()], { lr: 0.1 });
  const none = ((step: number) => (step > 0 ? undefined : 1)) as () => number;
  const always = (() => undefined) as unknown as () => number;
  expect(() => new optim.LambdaLR(optimizer, always)).toThrowErrorMatchingInlineSnapshot(
    `[TorchError: LambdaLR: lrLambda: the result for step 0 is undefined; give a number]`,
  );
  for (const schedule of [new optim.LambdaLR(optimizer, none), new optim.MultiplicativeLR(optimizer, none)])
    expect(() => schedule.step()).toThrow(
      expect.objectContaining({
        code: 'BAD_ARGUMENT',
        message: `${schedule.constructor.name}: lrLambda: the result for step 1 is undefined; give a number`,
      }),
    );
  expect(() => new optim.CyclicLR(optimizer, 0.1, 0.2, { scaleFn: always })).toThrow(
    /^CyclicLR: scaleFn: the result for step 1 is undefined/,
  );
  expect(() => new optim.CosineAnnealingLR(optimizer, 5, { etaMin: Number.NaN }).step()).toThrow(
    /^CosineAnnealingLR: the rate of group 0 is NaN/,
  );
  expect(rates(optimizer)).toEqual([0.1]);
});

const everyKind: Readonly<Record<string, (optimizer: optim.Optimizer) => Schedule>> = {
  LambdaLR: (optimizer) => new optim.LambdaLR(optimizer, (step) => 0.9 ** step),
  MultiplicativeLR: (optimizer) => new optim.MultiplicativeLR(optimizer, () => 0.9),
  CosineAnnealingLR: (optimizer) => new optim.CosineAnnealingLR(optimizer, 2),
  CosineAnnealingWarmRestarts: (optimizer) => new optim.CosineAnnealingWarmRestarts(optimizer, 5),
  CyclicLR: (optimizer) => new optim.CyclicLR(optimizer, 0.01, 0.1),
  OneCycleLR: (optimizer) => new optim.OneCycleLR(optimizer, 0.1, { totalSteps: 10 }),
  StepLR: (optimizer) => new optim.StepLR(optimizer, 1),
  SequentialLR: (optimizer) =>
    new optim.SequentialLR(
      optimizer,
      [new optim.LambdaLR(optimizer, () => 0.5), new optim.CosineAnnealingWarmRestarts(optimizer, 5)],
      [2],
    ),
  ChainedScheduler: (optimizer) => new optim.ChainedScheduler([new optim.LambdaLR(optimizer, () => 0.5)]),
  ReduceLROnPlateau: (optimizer) => new optim.ReduceLROnPlateau(optimizer) as Schedule,
};

describe.each(Object.entries(everyKind))('%s', (name, of) => {
  const make = (groups: number): optim.Optimizer => optimizerOf({ optimizer: 'SGD', groups });

  test('goes on when a group is added, or taken out', () => {
    const [optimizer, alone] = [make(1), make(1)];
    const [schedule, other] = [of(optimizer), of(alone)];
    optimizer.addParamGroup({ params: [zeros([1]).requiresGrad_()], lr: 0.05 });
    for (let step = 1; step < 6; step++) {
      schedule.step(1);
      other.step(1);
      expect(rates(optimizer)[0]).toBe(rates(alone)[0]);
      if (name === 'StepLR') expect(rates(optimizer)[1]).toBeCloseTo(0.05 * 0.1 ** step, 12);
      else if (name !== 'CosineAnnealingLR') expect(rates(optimizer)[1]).toBe(0.05);
      expect(rates(optimizer)[1]).not.toBeNaN();
    }
    expect(schedule.getLastLr()).toEqual(rates(optimizer));
    optimizer.paramGroups.splice(0, 2);
    schedule.step(1);
  });

  test('refuses a state of another number of groups, and is not changed', () => {
    const schedule = of(make(2));
    const before = JSON.stringify(schedule.stateDict());
    const state = of(make(1)).stateDict();
    expect(() => schedule.loadStateDict(state)).toThrow(
      expect.objectContaining({
        code: 'STATE_DICT',
        message: expect.stringMatching(
          /^\w+.loadStateDict: the state is of 1 groups, this schedule was made for 2; make the optimizer/,
        ) as string,
      }),
    );
    expect(JSON.stringify(schedule.stateDict())).toBe(before);
  });
});

test('what makes no sense is refused', () => {
  const optimizer = new optim.SGD([ones([1]).requiresGrad_()]);
  expect(() => new optim.StepLR(optimizer, 1, { gama: 0.5 } as object)).toThrowErrorMatchingInlineSnapshot(
    `[TorchError: StepLR: unknown option 'gama' (did you mean 'gamma'?); it takes gamma, lastEpoch]`,
  );
  expect(() => new optim.OneCycleLR(optimizer, 0.1, {})).toThrowErrorMatchingInlineSnapshot(
    `[TorchError: OneCycleLR: give totalSteps, or epochs and stepsPerEpoch, as whole numbers above 0, got NaN]`,
  );
  expect(() => new optim.LinearLR(optimizer, { startFactor: 0 })).toThrow(/between 0 and 1/);
  expect(() => new optim.LambdaLR(optimizer, [() => 1, () => 1])).toThrow(/the optimizer has 1 groups/);
  expect(() => new optim.StepLR({} as optim.SGD, 1)).toThrow(/the first argument is an optimizer/);
  for (const size of [0, -1, 1.5, Number.NaN])
    expect(() => new optim.StepLR(optimizer, size)).toThrow(/StepLR: stepSize must be a whole number of at least 1/);
  expect(() => new optim.MultiStepLR(optimizer, [1.5])).toThrow(/milestones is an array of 1; give an array of whole/);
  expect(() => new optim.CosineAnnealingLR(optimizer, 0)).toThrow(/tMax is 0; give a number above 0/);
  expect(() => new optim.ExponentialLR(optimizer, Number.NaN)).toThrow(/gamma is NaN; give a number/);
});

test('a cycle after another schedule leaves it the rate that the optimizer began with', () => {
  const optimizer = new optim.SGD([ones([1])], { lr: 0.1 });
  const { LinearLR, CyclicLR, SequentialLR } = optim;
  const warm = new LinearLR(optimizer, { startFactor: 0.25, totalIters: 4 });
  const cycle = new CyclicLR(optimizer, 0.01, 0.1, { stepSizeUp: 2, cycleMomentum: false });
  const schedule = new SequentialLR(optimizer, [warm, cycle], [3]);
  const rates = Array.from({ length: 9 }, () => {
    const rate = optimizer.paramGroups[0]!.lr;
    optimizer.step();
    schedule.step();
    return rate;
  });
  // PyTorch's.
  const wanted = [0.025, 0.04375, 0.0625, 0.01, 0.055, 0.1, 0.055, 0.01, 0.055];
  rates.forEach((rate, i) => expect(rate).toBeCloseTo(wanted[i]!, 12));
});

test('a sequence inside of another begins with its first schedule when its turn comes', () => {
  const optimizer = new optim.SGD([ones([1])], { lr: 0.8 });
  const { ExponentialLR, LinearLR, SequentialLR, StepLR } = optim;
  const inner = new SequentialLR(
    optimizer,
    [new LinearLR(optimizer, { startFactor: 0.25, totalIters: 2 }), new StepLR(optimizer, 1, { gamma: 0.5 })],
    [2],
  );
  const schedule = new SequentialLR(optimizer, [new ExponentialLR(optimizer, 0.5), inner], [2]);
  const rates = Array.from({ length: 7 }, () => {
    const rate = optimizer.paramGroups[0]!.lr;
    optimizer.step();
    schedule.step();
    return rate;
  });
  const wanted = [0.8, 0.4, 0.2, 0.5, 0.8, 0.4, 0.2];
  rates.forEach((rate, i) => expect(rate).toBeCloseTo(wanted[i]!, 12));
});
