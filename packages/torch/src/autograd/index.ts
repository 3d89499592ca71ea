/** @file Gradients: everything of this folder that users call. */
export { type AutocastOptions, autocast, getAutocastDtype, isAutocastEnabled } from './autocast.ts';
export { AutogradNode, type NodeHook, type NodePrehook } from './autograd-node.ts';
export { BackwardRun, type StartBackwardOptions, startBackward } from './background.ts';
export { type BackwardOptions, backward, type GradOptions, grad } from './backward.ts';
export { checkpoint } from './checkpoint.ts';
export {
  AutogradFunction,
  FunctionContext,
  type FunctionType,
} from './function.ts';
export { GradScaler, type GradScalerOptions, type GradScalerState, type ScaledOptimizer } from './grad-scaler.ts';
export { type Checked, type GradcheckOptions, gradcheck, gradgradcheck } from './gradcheck.ts';
export { GradientEdge, type GradientTarget, getGradientEdge } from './gradient-edge.ts';
export { HookHandle } from './hook-handle.ts';

import './hooks.ts';

export { backwardInputsFirst, type InputsFirstOptions } from './inputs-first.ts';
export { enableGrad, inferenceMode, isGradEnabled, isInferenceModeEnabled, noGrad, setGradEnabled } from './modes.ts';
export { savedTensorsHooks } from './saved-tensors.ts';
export {
  type InputBackwardOptions,
  type InputBackwardResult,
  inputBackward,
  WeightBackward,
} from './split-backward.ts';
