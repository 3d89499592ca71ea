/**
 * @file Gradients of float16 computations without underflow: the loss is scaled up, the gradients back down, and steps
 * whose gradients are not finite are left out. bfloat16 needs none of this.
 */
import { native } from '../addon.ts';
import { noGrad } from '../autograd/modes.ts';
import { tensor as makeTensor } from '../creation.ts';
import type { Device } from '../device.ts';
import { float16, float32, int32 } from '../dtype.ts';
import { checkOptions, TorchError } from '../errors.ts';
import '../generated/methods.ts';
import { readOptions } from '../nn/options.ts';
import type { Real } from '../nn/text.ts';
import { callOp } from '../op/call.ts';
import { scope, unscoped } from '../scope.ts';
import { Tensor } from '../tensor.ts';
import type { Optimizer } from './optimizer.ts';

/** What a scaler can be told. */
export interface GradScalerOptions {
  /** The scale to begin with. */
  initScale?: Real | undefined;
  /** The scale grows by this after `growthInterval` steps without trouble. */
  growthFactor?: Real | undefined;
  /** The scale shrinks by this when gradients were not finite. */
  backoffFactor?: Real | undefined;
  growthInterval?: number | undefined;
  /** A scaler that is off does nothing but call the optimizer. */
  enabled?: boolean | undefined;
}

/** What a scaler remembers. */
export interface GradScalerState {
  readonly scale: number;
  readonly growthFactor: number;
  readonly backoffFactor: number;
  readonly growthInterval: number;
  readonly growthTracker: number;
}

type Steppable = Pick<Optimizer, 'paramGroups' | 'step'>;

/** What happened to an optimizer since the last `update`: one number per device, above zero where something is not finite. */
interface Round {
  stage: 'unscaled' | 'stepped';
  readonly found: Tensor[];
}

/**
 * Scales losses and gradients for float16.
 *
 * @example scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
 */
export class GradScaler {
  private readonly options: Required<{ [K in keyof GradScalerOptions]: NonNullable<GradScalerOptions[K]> }> & {
    initScale: number;
    growthFactor: number;
    backoffFactor: number;
  };
  private factor: Tensor | null = null;
  private tracker: Tensor | null = null;
  private beginTracker = 0;
  private readonly rounds = new Map<Steppable, Round>();

  constructor(options?: GradScalerOptions) {
    const given = readOptions('GradScaler', options, {
      initScale: 65536,
      growthFactor: 2,
      backoffFactor: 0.5,
      growthInterval: 2000,
      enabled: true,
    });
    if (!(given.growthFactor > 1))
      throw new TorchError('BAD_ARGUMENT', `GradScaler: growthFactor must be above 1, got ${given.growthFactor}`);
    if (!(given.backoffFactor < 1))
      throw new TorchError('BAD_ARGUMENT', `GradScaler: backoffFactor must be below 1, got ${given.backoffFactor}`);
    this.options = given;
  }

  /** The loss times the scale: call `backward` on the result. */
  scale(loss: Tensor): Tensor {
    if (!this.options.enabled) return loss;
    return loss.mul(this.on(loss.device));
  }

  /** The scale on a device; it lives where the first loss was. */
  private on(device: Device): Tensor {
    this.factor ??= unscoped(() => makeTensor([this.options.initScale], { dtype: float32, device }));
    this.tracker ??= unscoped(() => makeTensor([this.beginTracker], { dtype: int32, device }));
    return this.factor.to(device);
  }

  /** Brings an optimizer's gradients back to their size, to clip them before `step`. */
  unscale_(optimizer: Steppable): void {
    if (!this.options.enabled) return;
    if (this.rounds.has(optimizer)) {
      throw new TorchError(
        'SCALER',
        'GradScaler.unscale_: the gradients were brought back already; call it once, before step(), and update() after',
      );
    }
    const handles = optimizer.paramGroups.flatMap((group) => group.params.map((parameter) => parameter.handle));
    const found = noGrad(() => scope(() => this.check(native.gradsOf(handles).map((handle) => Tensor.adopt(handle)))));
    this.rounds.set(optimizer, { stage: 'unscaled', found });
  }

  private check(grads: Tensor[]): Tensor[] {
    const kinds = new Map<string, Tensor[]>();
    for (const grad of grads) {
      if (grad.dtype === float16)
        throw new TorchError(
          'DTYPE',
          'GradScaler: gradients are float16; keep the parameters in float32 and use autocast',
        );
      const key = `${grad.device} ${grad.dtype.name}`;
      kinds.set(key, [...(kinds.get(key) ?? []), grad]);
    }
    const found = new Map<Device, Tensor>();
    for (const [first, ...rest] of kinds.values()) {
      const { device } = first as Tensor;
      const flag = found.get(device) ?? unscoped(() => makeTensor([0], { dtype: float32, device }));
      found.set(device, flag);
      const inverse = this.on(device).to('float64').reciprocal().to(float32);
      callOp('aten::_amp_foreach_non_finite_check_and_unscale_', [[first, ...rest], flag, inverse]);
    }
    return [...found.values()];
  }

  /** Steps the optimizer unless a gradient is not finite; says whether it did. */
  step(optimizer: Steppable): boolean {
    if (!this.options.enabled) {
      optimizer.step();
      return true;
    }
    if (this.rounds.get(optimizer)?.stage === 'stepped')
      throw new TorchError(
        'SCALER',
        'GradScaler.step: this optimizer was stepped already; call update() after each step',
      );
    if (!this.rounds.has(optimizer)) this.unscale_(optimizer);
    const round = this.rounds.get(optimizer) as Round;
    if (round.found.length === 0)
      throw new TorchError(
        'SCALER',
        'GradScaler.step: no parameter has a gradient; call backward() on the scaled loss first',
      );
    const isFinite = round.found.every((flag) => flag.item() === 0);
    if (isFinite) optimizer.step();
    round.stage = 'stepped';
    return isFinite;
  }

  /** Grows or shrinks the scale after a step; a number sets it. */
  update(newScale?: number): void {
    if (!this.options.enabled) return;
    const { factor, tracker } = this;
    if (factor === null || tracker === null)
      throw new TorchError('SCALER', 'GradScaler.update: nothing was scaled yet; call scale(loss) first');
    const { growthFactor, backoffFactor, growthInterval } = this.options;
    const found = [...this.rounds.values()].flatMap((round) => round.found);
    noGrad(() =>
      scope(() => {
        if (newScale !== undefined) factor.fill_(newScale);
        else if (found.length > 0) {
          const any = found.map((flag) => flag.to(factor.device)).reduce((sum, flag) => sum.add(flag));
          callOp('aten::_amp_update_scale_', [factor, tracker, any, growthFactor, backoffFactor, growthInterval]);
        }
      }),
    );
    for (const flag of found) flag.dispose();
    this.rounds.clear();
  }

  /** The scale now. */
  getScale(): number {
    if (!this.options.enabled) return 1;
    return this.factor?.item() ?? this.options.initScale;
  }

  /** Whether it does anything. */
  isEnabled(): boolean {
    return this.options.enabled;
  }

  /** Everything needed to go on later. */
  stateDict(): GradScalerState {
    const { growthFactor, backoffFactor, growthInterval } = this.options;
    const growthTracker = this.tracker?.item() ?? this.beginTracker;
    return { scale: this.getScale(), growthFactor, backoffFactor, growthInterval, growthTracker };
  }

  /** Goes on where `stateDict` was taken. */
  loadStateDict(state: GradScalerState): void {
    checkOptions('GradScaler.loadStateDict', state, [
      'scale',
      'growthFactor',
      'backoffFactor',
      'growthInterval',
      'growthTracker',
    ]);
    Object.assign(this.options, {
      initScale: state.scale,
      growthFactor: state.growthFactor,
      backoffFactor: state.backoffFactor,
      growthInterval: state.growthInterval,
    });
    this.beginTracker = state.growthTracker;
    this.dispose();
  }

  /** Frees the scaler's few numbers. */
  dispose(): void {
    this.factor?.dispose();
    this.tracker?.dispose();
    [this.factor, this.tracker] = [null, null];
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}
