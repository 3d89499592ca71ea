/**
 * @file Values that a stage gives away although its module may change them later, in the forward of another microbatch: its
 * buffers, tensors in its fields, and views of them. Who gets one needs a copy.
 */
import { nn, Tensor } from '@pipewright/torch';
import { storageOf } from '../../base/memory.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StepState } from '../row/step-state.ts';

/** Whether a value of a stage may change after it was given away. What needs a gradient cannot: backward would refuse it. */
export function mayChange(tensor: Tensor, stage: PipelineStage, step: StepState): boolean {
  if (tensor.requiresGrad) return false;
  if (tensor instanceof nn.Buffer) return true;
  const held = heldMemory(stage, step);
  return held.size > 0 && held.has(storageOf(tensor));
}

/** Where the memory begins that a stage's module holds; found once in a step, after the first forward that needs it. */
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
