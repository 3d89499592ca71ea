/** @file The gradient scaler: scaling, skipping, growing and shrinking. */
import { expect, test } from 'vitest';
import { float16, liveTensors, nn, ones, optim, tensor } from '../index.ts';

function setUp(options?: optim.GradScalerOptions): {
  weight: nn.Parameter;
  optimizer: optim.SGD;
  scaler: optim.GradScaler;
} {
  const weight = new nn.Parameter(ones([1]));
  return { weight, optimizer: new optim.SGD([weight], { lr: 0.5 }), scaler: new optim.GradScaler(options) };
}

test('a step is the same as without scaling', () => {
  const { weight, optimizer, scaler } = setUp({ initScale: 1024, growthInterval: 2 });
  const loss = weight.mul(3);
  expect(scaler.scale(loss).item()).toBe(3072);
  scaler.scale(loss).sum().backward();
  expect(weight.grad?.item()).toBe(3072);
  scaler.unscale_(optimizer);
  expect(weight.grad?.item()).toBe(3);
  expect(scaler.step(optimizer)).toBe(true);
  expect(weight.item()).toBe(-0.5);
  scaler.update();
  expect(scaler.getScale()).toBe(1024);
  scaler.step(optimizer);
  scaler.update();
  expect(scaler.getScale()).toBe(2048);
});

test('a gradient that is not finite skips the step and shrinks the scale', () => {
  const { weight, optimizer, scaler } = setUp({ initScale: 16 });
  scaler.scale(weight.mul(Infinity)).sum().backward();
  expect(scaler.step(optimizer)).toBe(false);
  scaler.update();
  expect([weight.item(), scaler.getScale()]).toEqual([1, 8]);
  scaler.update(4);
  expect(scaler.getScale()).toBe(4);
});

test('its state can be saved; nothing is left behind', () => {
  const { weight, optimizer, scaler } = setUp({ initScale: 16 });
  scaler.scale(weight.mul(1)).sum().backward();
  scaler.step(optimizer);
  scaler.update();
  const other = new optim.GradScaler();
  other.loadStateDict(scaler.stateDict());
  expect(other.stateDict()).toEqual({
    scale: 16,
    growthFactor: 2,
    backoffFactor: 0.5,
    growthInterval: 2000,
    growthTracker: 1,
  });
  const live = liveTensors();
  scaler.dispose();
  expect(liveTensors()).toBe(live - 2);
});

test('one that is off only calls the optimizer', () => {
  const { weight, optimizer, scaler } = setUp({ enabled: false });
  scaler.scale(weight.mul(1)).sum().backward();
  expect([scaler.step(optimizer), weight.item(), scaler.getScale()]).toEqual([true, 0.5, 1]);
  scaler.update();
});

test('misuse says what to do', () => {
  const { weight, optimizer, scaler } = setUp();
  expect(() => scaler.update()).toThrow(/call scale\(loss\) first/);
  expect(() => scaler.step(optimizer)).toThrow(/no parameter has a gradient/);
  scaler.scale(weight.mul(1)).sum().backward();
  scaler.update();
  scaler.unscale_(optimizer);
  expect(() => scaler.unscale_(optimizer)).toThrow(/brought back already/);
  scaler.step(optimizer);
  expect(() => scaler.step(optimizer)).toThrow(/stepped already/);
  const half = new nn.Parameter(tensor([1], { dtype: float16 }));
  half.grad = ones([1], { dtype: float16 });
  expect(() => scaler.unscale_(new optim.SGD([half]))).toThrow(/keep the parameters in float32/);
  expect(() => new optim.GradScaler({ growthFactor: 1 })).toThrow(/growthFactor must be above 1/);
});
