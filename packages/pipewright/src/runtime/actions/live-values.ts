/**
 * @file Outputs of a stage that its module may change later, in the forward of another microbatch: its buffers, tensors in its
 * fields, and views of them. Other stages get copies of these.
 */
import { nn, Tensor } from '@pipewright/torch';
import { storageOf } from '../../base/memory.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StepState } from '../row/step-state.ts';

/** Whether an output of a stage may change later. A tensor with a gradient cannot: its backward would refuse the change. */
export function mayChange(tensor: Tensor, stage: PipelineStage, step: StepState): boolean {
  if (tensor.requiresGrad) return false;
  if (tensor instanceof nn.Buffer) return true;
  const held = heldMemory(stage, step);
  return held.size > 0 && held.has(storageOf(tensor));
}

/** Addresses of the memory that a stage's module holds; collected once in a step, after the first forward that needs them. */
function heldMemory(stage: PipelineStage, { heldMemory: known }: StepState): ReadonlySet<bigint> {
  let memory = known.get(stage);
  if (memory === undefined) {
    memory = new Set(stage.module.modules().flatMap(heldBy).map(storageOf));
    memory.delete(0n);
    known.set(stage, memory);
  }
  return memory;
}

function heldBy(module: nn.Module): Tensor[] {
  const held = module.members().buffers.map(([, buffer]): Tensor => buffer);
  for (const value of Object.values(module))
    if (value instanceof Tensor && !(value instanceof nn.Parameter)) held.push(value);
  return held.filter((tensor) => !tensor.isDisposed);
}
