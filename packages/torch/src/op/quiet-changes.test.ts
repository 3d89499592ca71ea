/** @file Changes that libtorch does not count are seen by who watches: in modules, functions and prepared calls. */
import { expect, test } from 'vitest';
import { batchNorm, nn, ones, randn, type Tensor, zeros } from '../index.ts';
import { type Operand, prepareCall, releaseHandle, watchQuietChanges } from '../internal.ts';

test('running statistics change without a new version, and are reported in training only', () => {
  const norm = new nn.BatchNorm1d(3);
  const x = randn([4, 3, 5]);
  const [mean, variance] = [norm.runningMean!, norm.runningVar!];
  const versions = [mean.version, variance.version];
  const { result, changed } = watchQuietChanges(() => norm.forward(x));
  expect(result.shape).toEqual([4, 3, 5]);
  expect([mean.version, variance.version]).toEqual(versions);
  expect(changed).toEqual(new Set([mean.dataPtr(), variance.dataPtr()]));
  norm.eval();
  expect(watchQuietChanges(() => norm.forward(x)).changed.size).toBe(0);
});

test('statistics of any name, by the function and by the operator; a watch inside another tells both', () => {
  const own = { mean: zeros([3]), variance: ones([3]) };
  const x = randn([4, 3]);
  const outer = watchQuietChanges(() =>
    watchQuietChanges(() =>
      nn.functional.batchNorm(x, { runningMean: own.mean, runningVar: own.variance, training: true }),
    ),
  );
  expect(outer.changed).toEqual(new Set([own.mean.dataPtr(), own.variance.dataPtr()]));
  expect(outer.result.changed).toEqual(outer.changed);
  const call = (training: boolean): Tensor =>
    batchNorm(x, null, null, own.mean, own.variance, training, 0.1, 1e-5, false);
  expect(watchQuietChanges(() => call(true)).changed).toEqual(outer.changed);
  expect(watchQuietChanges(() => call(false)).changed.size).toBe(0);
});

test('in prepared calls, which work on bare handles', () => {
  const [x, mean, variance] = [randn([4, 3]), zeros([3]), ones([3])];
  const registers: unknown[] = [x.handle, mean.handle, variance.handle, true];
  const keep = (value: unknown): number => registers.push(value) - 1;
  const tensorAt = (register: number): Operand => ({ register, kind: 'tensor' });
  const args: Operand[] = [tensorAt(0), { fixed: null }, { fixed: null }, tensorAt(1), tensorAt(2)];
  const rest: Operand[] = [{ register: 3, kind: 'bool' }, { fixed: 0.1 }, { fixed: 1e-5 }, { fixed: false }];
  const { run } = prepareCall('aten::batch_norm', { args: [...args, ...rest] }, keep);
  const watched = (): ReadonlySet<bigint> => {
    const { result, changed } = watchQuietChanges(() => run(registers));
    releaseHandle(result as number);
    return changed;
  };
  expect(watched()).toEqual(new Set([mean.dataPtr(), variance.dataPtr()]));
  registers[3] = false;
  expect(watched().size).toBe(0);
});
