/** @file Loss scaling for float16: gradients too small for the type are made larger, and steps with infinities skipped. */

import { checkOptions, TorchError } from '../base/errors.ts';
import type { ProcessGroup } from '../distributed/group/process-group.ts';
import { callOp } from '../op/call.ts';
import type { Device } from '../tensor/device.ts';
import { scope, unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { mapTensors } from '../tensor/tree.ts';
import { noGrad } from './modes.ts';

/** What a scaler needs of an optimizer. */
export interface ScaledOptimizer {
  readonly paramGroups: Iterable<{ readonly params: Iterable<Tensor> }>;
  step(...args: never[]): unknown;
}

/** How the scale moves. */
export interface GradScalerOptions {
  /** Default 65536. */
  initScale?: number | undefined;
  /** The scale is multiplied by it after `growthInterval` steps without infinities. Default 2. */
  growthFactor?: number | undefined;
  /** The scale is multiplied by it after a step with infinities. Default 0.5. */
  backoffFactor?: number | undefined;
  /** Default 2000. */
  growthInterval?: number | undefined;
  /** False makes every method do nothing. Default true. */
  enabled?: boolean | undefined;
  /** Ranks that hold parts of one model: an infinity on one of them makes all of them skip the step. */
  group?: ProcessGroup | undefined;
}

/** What `stateDict` gives and `loadStateDict` takes. */
export interface GradScalerState {
  readonly scale: number;
  readonly growthFactor: number;
  readonly backoffFactor: number;
  readonly growthInterval: number;
  readonly growthTracker: number;
}

interface OptimizerState {
  stage: 'ready' | 'unscaled' | 'stepped';
  foundInf: Tensor[];
}

const optionNames = ['initScale', 'growthFactor', 'backoffFactor', 'growthInterval', 'enabled', 'group'] as const;

/**
 * Scales the loss, and the gradients back before the step. The scale lives where the first loss does.
 *
 * @example scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
 */
export class GradScaler {
  readonly enabled: boolean;
  private readonly group: ProcessGroup | undefined;
  private growthFactor: number;
  private backoffFactor: number;
  private growthInterval: number;
  private initScale: number;
  private initTracker = 0;
  private scaleTensor: Tensor | null = null;
  private trackerTensor: Tensor | null = null;
  private optimizers = new Map<ScaledOptimizer, OptimizerState>();

  constructor(options?: GradScalerOptions) {
    checkOptions('GradScaler', options, optionNames);
    this.enabled = options?.enabled !== false;
    this.group = options?.group;
    this.initScale = options?.initScale ?? 65536;
    this.growthFactor = options?.growthFactor ?? 2;
    this.backoffFactor = options?.backoffFactor ?? 0.5;
    this.growthInterval = options?.growthInterval ?? 2000;
    if (!(this.growthFactor > 1))
      throw new TorchError('BAD_ARGUMENT', `GradScaler: growthFactor must be more than 1, got ${this.growthFactor}`);
    if (!(this.backoffFactor < 1))
      throw new TorchError('BAD_ARGUMENT', `GradScaler: backoffFactor must be less than 1, got ${this.backoffFactor}`);
  }

  /** The loss (or every tensor in a structure) times the scale. */
  scale<T>(outputs: T): T {
    if (!this.enabled) return outputs;
    return mapTensors(outputs, (tensor) => {
      const scale = this.scaleOn(tensor.device);
      return callOp('aten::mul.Tensor', [tensor, scale]) as Tensor;
    }) as T;
  }

  /** Divides the optimizer's gradients by the scale, for clipping before `step`; once per step. */
  unscale_(optimizer: ScaledOptimizer): void {
    if (!this.enabled) return;
    const state = this.stateOf(optimizer);
    if (state.stage === 'unscaled')
      throw new TorchError(
        'GRAD_SCALER',
        'GradScaler.unscale_: was called on this optimizer already; call update() after each step',
      );
    if (state.stage === 'stepped')
      throw new TorchError('GRAD_SCALER', 'GradScaler.unscale_: step() has run already; unscale before it');
    this.unscaleInto(optimizer, state);
    state.stage = 'unscaled';
  }

  /** Steps the optimizer unless its gradients have infinities or NaN; whether it did. */
  step(optimizer: ScaledOptimizer): boolean {
    if (!this.enabled) {
      optimizer.step();
      return true;
    }
    const state = this.stateOf(optimizer);
    if (state.stage === 'stepped')
      throw new TorchError(
        'GRAD_SCALER',
        'GradScaler.step: was called on this optimizer already; call update() after each step',
      );
    if (state.stage === 'ready') this.unscaleInto(optimizer, state);
    if (state.foundInf.length === 0)
      throw new TorchError(
        'GRAD_SCALER',
        'GradScaler.step: no parameter of the optimizer has a gradient; call scale(loss).backward() first',
      );
    const stepped = state.foundInf.every((found) => found.item() === 0);
    if (stepped) optimizer.step();
    state.stage = 'stepped';
    return stepped;
  }

  /**
   * Divides the optimizer's gradients by the scale, unless `unscale_` has done so, without asking other ranks: for whoever finds
   * out with them what is not finite, and tells it by `settle`.
   *
   * @example scaler.unscaleOwn_(optimizer); const bad = isAnyRankBad(); if (!bad) optimizer.step(); scaler.settle(optimizer, bad)
   */
  unscaleOwn_(optimizer: ScaledOptimizer): void {
    if (!this.enabled) return;
    const state = this.stateOf(optimizer);
    if (state.stage === 'stepped')
      throw new TorchError(
        'GRAD_SCALER',
        'GradScaler.unscaleOwn_: the step of this optimizer was made already; call update() after each step',
      );
    if (state.stage === 'ready') this.unscaleInto(optimizer, state, true);
    state.stage = 'unscaled';
  }

  /** The optimizers whose gradients were divided by the scale since the last `update`. @example scaler.unscaledOptimizers().length */
  unscaledOptimizers(): readonly ScaledOptimizer[] {
    return [...this.optimizers].flatMap(([optimizer, { stage }]) => (stage === 'ready' ? [] : [optimizer]));
  }

  /** Says what all ranks have found of an optimizer's gradients, so that `update` moves the scale alike on all. @example scaler.settle(optimizer, skipped) */
  settle(optimizer: ScaledOptimizer, foundInf: boolean): void {
    if (!this.enabled) return;
    const state = this.stateOf(optimizer);
    for (const item of state.foundInf) item.dispose();
    const device = this.scaleTensor?.device ?? deviceOf(optimizer);
    state.foundInf = [
      unscoped(() => callOp('aten::full', [[], foundInf ? 1 : 0], { dtype: 'float32', device }) as Tensor),
    ];
    state.stage = 'stepped';
  }

  /** Moves the scale: down after infinities, up after enough steps without; or sets it. Call once per step. */
  update(newScale?: number): void {
    if (!this.enabled) return;
    const [scale, tracker] = this.tensors('update');
    scope(() =>
      noGrad(() => {
        if (newScale !== undefined) {
          callOp('aten::fill_.Scalar', [scale, newScale]);
        } else {
          const found = [...this.optimizers.values()].flatMap((state) => state.foundInf);
          if (found.length === 0)
            throw new TorchError(
              'GRAD_SCALER',
              'GradScaler.update: no step() before it; the scale moves by what a step found',
            );
          const total = found
            .map((item) => onDevice(item, scale.device))
            .reduce((sum, item) => callOp('aten::add.Tensor', [sum, item]) as Tensor);
          callOp('aten::_amp_update_scale_', [
            scale,
            tracker,
            total,
            this.growthFactor,
            this.backoffFactor,
            this.growthInterval,
          ]);
        }
      }),
    );
    for (const state of this.optimizers.values()) for (const item of state.foundInf) item.dispose();
    this.optimizers.clear();
  }

  /** The scale now. */
  getScale(): number {
    if (!this.enabled) return 1;
    return this.scaleTensor === null ? this.initScale : this.scaleTensor.item();
  }

  /** All that a later run needs to go on. */
  stateDict(): GradScalerState | Record<string, never> {
    if (!this.enabled) return {};
    return {
      scale: this.getScale(),
      growthFactor: this.growthFactor,
      backoffFactor: this.backoffFactor,
      growthInterval: this.growthInterval,
      growthTracker: this.trackerTensor === null ? this.initTracker : this.trackerTensor.item(),
    };
  }

  /** Goes on where `stateDict` was taken. */
  loadStateDict(state: GradScalerState): void {
    if (!this.enabled) return;
    const missing = ['scale', 'growthFactor', 'backoffFactor', 'growthInterval', 'growthTracker'].filter(
      (key) => !(key in state),
    );
    if (missing.length > 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `GradScaler.loadStateDict: missing ${missing.join(', ')}; was the scaler that saved it enabled?`,
      );
    this.dispose();
    this.initScale = state.scale;
    this.growthFactor = state.growthFactor;
    this.backoffFactor = state.backoffFactor;
    this.growthInterval = state.growthInterval;
    this.initTracker = state.growthTracker;
  }

  /** Frees the scaler's own tensors. */
  dispose(): void {
    this.scaleTensor?.dispose();
    this.trackerTensor?.dispose();
    this.scaleTensor = null;
    this.trackerTensor = null;
    for (const state of this.optimizers.values()) for (const item of state.foundInf) item.dispose();
    this.optimizers.clear();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private stateOf(optimizer: ScaledOptimizer): OptimizerState {
    let state = this.optimizers.get(optimizer);
    if (state === undefined) {
      state = { stage: 'ready', foundInf: [] };
      this.optimizers.set(optimizer, state);
    }
    return state;
  }

  private scaleOn(device: Device): Tensor {
    if (this.scaleTensor === null) {
      unscoped(() => {
        this.scaleTensor = callOp('aten::full', [[], this.initScale], { dtype: 'float32', device }) as Tensor;
        this.trackerTensor = callOp('aten::full', [[], this.initTracker], { dtype: 'int32', device }) as Tensor;
      });
    }
    return onDevice(this.scaleTensor as unknown as Tensor, device);
  }

  private tensors(where: string): [scale: Tensor, tracker: Tensor] {
    if (this.scaleTensor === null || this.trackerTensor === null) {
      throw new TorchError(
        'GRAD_SCALER',
        `GradScaler.${where}: no loss was scaled yet; call scale(loss).backward() first`,
      );
    }
    return [this.scaleTensor, this.trackerTensor];
  }

  /** What the ranks of a group found, in all; every rank joins, also one without gradients. */
  private worst(group: ProcessGroup, flags: readonly Tensor[]): Tensor {
    const all = callOp('aten::full', [[], Math.max(0, ...flags.map((flag) => flag.item()))], {
      dtype: 'float32',
      device: group.backend === 'nccl' ? (flags[0]?.device ?? 'cuda') : 'cpu',
    }) as Tensor;
    group.allReduce(all, { op: 'max' });
    return all;
  }

  private unscaleInto(optimizer: ScaledOptimizer, state: OptimizerState, isAlone = false): void {
    const group = isAlone ? undefined : this.group;
    if (isAlone || group !== undefined) this.scaleOn(deviceOf(optimizer)); // another rank may hold the loss
    const [scale] = this.tensors('unscale_');
    const byKind = new Map<string, Tensor[]>();
    scope(() =>
      noGrad(() => {
        const inverse = callOp('aten::to.dtype', [
          callOp('aten::reciprocal', [callOp('aten::to.dtype', [scale, 'float64'])]),
          'float32',
        ]) as Tensor;
        const found = new Map<Device, Tensor>();
        for (const group of optimizer.paramGroups) {
          for (const parameter of group.params) {
            const gradient = parameter.grad;
            if (gradient === null) continue;
            if (gradient.dtype.name === 'float16') {
              throw new TorchError(
                'DTYPE',
                'GradScaler: a gradient is float16, so its scaled value may have been infinite in the optimizer already; keep parameters in float32 and use autocast',
              );
            }
            const values =
              gradient.layout === 'sparse_coo' ? (callOp('aten::_values', [gradient]) as Tensor) : gradient;
            const kind = `${gradient.device} ${gradient.dtype.name}`;
            const list = byKind.get(kind);
            if (list === undefined) byKind.set(kind, [values]);
            else list.push(values);
          }
        }
        for (const list of byKind.values()) {
          const { device } = list[0]!;
          let flag = found.get(device);
          if (flag === undefined) {
            flag = callOp('aten::full', [[], 0], { dtype: 'float32', device }) as Tensor;
            found.set(device, flag);
          }
          callOp('aten::_amp_foreach_non_finite_check_and_unscale_', [list, flag, onDevice(inverse, device)]);
        }
        const flags = group === undefined ? [...found.values()] : [this.worst(group, [...found.values()])];
        state.foundInf = flags.map((item) => unscoped(() => item.alias()));
      }),
    );
  }
}

function deviceOf(optimizer: ScaledOptimizer): Device {
  for (const { params } of optimizer.paramGroups) for (const parameter of params) return parameter.device;
  return 'cpu';
}

function onDevice(tensor: Tensor, device: Device): Tensor {
  return tensor.device === device ? tensor : (callOp('aten::to.device', [tensor, device, tensor.dtype]) as Tensor);
}
