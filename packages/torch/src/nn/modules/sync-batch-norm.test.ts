/** @file SyncBatchNorm over ranks equals BatchNorm over the whole batch. */
import { expect, test } from 'vitest';
import { runThreads } from '../../../testing/launch.ts';
import { arange, nn, scope, type Tensor } from '../../index.ts';

interface Report {
  readonly name: string;
  readonly output: number[];
  readonly grad: number[];
  readonly learned: number[][];
  readonly buffers: number[][];
  readonly alone: number[];
}

const flat = (x: Tensor): number[] => x.flatten().to('float64').toArray() as number[];

/** The same on one rank with the plain module. */
function plain({ momentum, affine, shares }: Settings): Report {
  const count = shares.reduce((a, b) => a + b, 0) * 12;
  const x = arange(count).to('float64').mul(0.37).sin().reshape([-1, 3, 4]);
  const input = x.clone().requiresGrad_();
  const model = new nn.BatchNorm1d(3, { momentum, affine, dtype: 'float64' });
  const output = model.forward(input);
  output.mul(x.cos()).sum().backward();
  return {
    name: model.toString(),
    output: flat(output),
    grad: flat(input.grad!),
    learned: [...model.parameters()].map((each) => flat(each.grad!)),
    buffers: [...model.buffers()].map(flat),
    alone: flat(model.eval().forward(input)),
  };
}

interface Settings {
  readonly momentum: number | null;
  readonly affine: boolean;
  /** Rows of each rank. */
  readonly shares: readonly number[];
}

function close(found: readonly number[], wanted: readonly number[]): void {
  expect(found.length).toBe(wanted.length);
  found.forEach((value, i) => expect(Math.abs(value - (wanted[i] as number))).toBeLessThan(1e-12));
}

const cases: Settings[] = [
  { momentum: 0.1, affine: true, shares: [3, 3] },
  { momentum: null, affine: true, shares: [1, 4] },
  { momentum: 0.3, affine: false, shares: [2, 1, 3] },
];

test.each(cases)('ranks with $shares rows, momentum $momentum, affine $affine', async (settings) => {
  const reports = (await runThreads(settings.shares.length, { scenario: 'syncBatchNorm', ...settings })) as Report[];
  scope(() => {
    const wanted = plain(settings);
    close(
      reports.flatMap((report) => report.output),
      wanted.output,
    );
    close(
      reports.flatMap((report) => report.grad),
      wanted.grad,
    );
    close(
      reports.flatMap((report) => report.alone),
      wanted.alone,
    );
    // Gradients of weights are of each rank's rows: summing them is data parallelism's business.
    wanted.learned.forEach((grad, i) => {
      const sum = grad.map((_, e) => reports.reduce((total, { learned }) => total + (learned[i]?.[e] as number), 0));
      close(sum, grad);
    });
    for (const { buffers, name } of reports) {
      buffers.forEach((buffer, i) => close(buffer, wanted.buffers[i] as number[]));
      expect(name).toBe(wanted.name.replace('BatchNorm1d', 'SyncBatchNorm'));
    }
  });
});

test('without a group it is the plain module', () =>
  scope(() => {
    const x = arange(24).to('float32').reshape([4, 3, 2]);
    const [sync, plainOne] = [new nn.SyncBatchNorm(3), new nn.BatchNorm1d(3)];
    expect(sync.forward(x).toArray()).toEqual(plainOne.forward(x).toArray());
    expect(() => sync.forward(arange(3))).toThrow(/at least 2 dimensions/);
  }));
