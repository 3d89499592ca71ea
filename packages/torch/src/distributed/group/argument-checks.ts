/** @file Checks of what the operations of a group are given: peers, tags, tensors, reductions. */
import { checkGiven } from '../../base/checks.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { DistributedError } from '../base/errors.ts';
import type { PointToPointOptions, ProcessGroup, ReduceOp, ReductionOptions } from './process-group.ts';

/** Refuses what is no process group. */
export function checkGroup(where: string, name: string, group: unknown): void {
  const { rank, size, allReduce } = Object(group) as { readonly [name in 'rank' | 'size' | 'allReduce']?: unknown };
  const isGroup = Number.isInteger(rank) && Number.isInteger(size) && typeof allReduce === 'function';
  checkGiven(where, isGroup, [name, group], 'a process group, as initProcessGroup() returns it');
}

/** Checks of the arguments of one group's operations. */
export class ArgumentChecks {
  private readonly group: Pick<ProcessGroup, 'name' | 'backend' | 'rank' | 'size'>;

  constructor(group: ArgumentChecks['group']) {
    this.group = group;
  }

  /** Refuses a message that cannot be sent or received; returns its tag. */
  message(operation: string, tensor: Tensor, peer: number, options?: PointToPointOptions): number {
    checkOptions(operation, options, ['tag', 'timeoutMs']);
    this.tensor(operation, tensor);
    this.peer(operation, peer);
    const tag = options?.tag ?? 0;
    if (Number.isInteger(tag) && tag >= 0 && tag <= LARGEST_TAG) return tag;
    throw new TorchError(
      'BAD_ARGUMENT',
      `${operation}: the tag is ${String(tag)}; give a whole number from 0 to ${LARGEST_TAG}`,
    );
  }

  /** Refuses what is not a rank of the group. */
  peer(operation: string, peer: number, allowSelf: boolean = this.group.backend === 'thread'): void {
    if (!Number.isInteger(peer) || peer < 0 || peer >= this.group.size) {
      throw new TorchError(
        'RANK',
        `${operation}: ${String(peer)} is not a rank of group '${this.group.name}', which has ranks 0 to ${this.group.size - 1}`,
      );
    }
    if (peer === this.group.rank && !allowSelf) {
      throw new TorchError(
        'RANK',
        `${operation}: rank ${peer} cannot send to itself over ${this.group.backend}; use channel(${peer})`,
      );
    }
  }

  /** Refuses sparse and meta tensors, and, where they must be `placed`, those that the backend does not take. */
  tensor(operation: string, tensor: Tensor, placed = true): void {
    if (!(tensor instanceof Tensor))
      throw new TorchError('BAD_ARGUMENT', `${operation}: expected a tensor, got ${typeof tensor}`);
    const { device } = tensor;
    if (tensor.layout !== 'strided')
      throw new TorchError('BAD_ARGUMENT', `${operation}: the tensor is ${tensor.layout}; use toDense() first`);
    if (device === 'meta') throw new TorchError('META', `${operation}: a meta tensor has a shape but no values`);
    if (!placed) return;
    if (this.group.backend === 'gloo' && device !== 'cpu') {
      throw new TorchError(
        'DEVICE',
        `${operation}: gloo takes CPU tensors, this one is on ${device}; use cpu(), or the nccl backend`,
      );
    }
    if (this.group.backend === 'nccl' && !device.startsWith('cuda')) {
      throw new TorchError(
        'DEVICE',
        `${operation}: nccl takes CUDA tensors, this one is on ${device}; use cuda(), or the gloo backend`,
      );
    }
  }

  /** Refuses anything but one tensor for each rank. */
  list(operation: string, tensors: readonly Tensor[], what: string): void {
    if (Array.isArray(tensors) && tensors.length === this.group.size) return;
    const got = Array.isArray(tensors) ? `${tensors.length} tensors` : typeof tensors;
    throw new TorchError('BAD_ARGUMENT', `${operation}: expected ${this.group.size} tensors, ${what}; got ${got}`);
  }

  /** Refuses tensors of several element types or shapes. */
  same(operation: string, tensors: readonly Tensor[]): void {
    const [first] = tensors;
    const expected = `${first?.dtype.name}[${first?.shape.join(', ')}]`;
    for (const [i, tensor] of tensors.entries()) {
      const got = `${tensor.dtype.name}[${tensor.shape.join(', ')}]`;
      if (got === expected) continue;
      const hint = operation === 'allToAll' ? '; give outputs where shapes differ' : '';
      throw new TorchError(
        'SHAPE',
        `${operation}: tensor ${i} is ${got}, tensor 0 is ${expected}; all must be alike over ${this.group.backend}${hint}`,
      );
    }
  }

  /** Refuses what cannot be reduced; returns the addon's number of the operation. */
  reduction(operation: string, tensors: readonly Tensor[], options: ReductionOptions | undefined): number {
    checkOptions(operation, options, [...collectiveOptions, 'op']);
    const op = options?.op ?? 'sum';
    const code = opCodes[op];
    if (code === undefined) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `${operation}: op is ${String(op)}; give ${Object.keys(opCodes).join(', ')}`,
      );
    }
    for (const tensor of tensors) {
      this.tensor(operation, tensor);
      const { dtype } = tensor;
      const refuse = (why: string): DistributedError =>
        new DistributedError('DTYPE', `${operation}: ${dtype.name} ${why}`, {
          group: this.group.name,
          rank: this.group.rank,
          operation,
        });
      if (!reducible.has(dtype.name)) throw refuse('cannot be reduced; convert it first, for example to float32');
      if (op === 'avg' && !dtype.isFloatingPoint && !dtype.isComplex)
        throw refuse('has no average; use sum, or convert to float32');
      if (dtype.isComplex && op !== 'sum' && op !== 'avg')
        throw refuse(`numbers cannot be reduced with ${op}; use sum or avg`);
    }
    return code;
  }
}

const opCodes: Readonly<Record<ReduceOp, number>> = { sum: 0, avg: 1, product: 2, min: 3, max: 4 };
const reducible = new Set(
  'uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 bool'.split(' '),
);
const LARGEST_TAG = 0x7ffeffff;
/** The options of every collective. */
export const collectiveOptions: readonly string[] = ['asyncOp', 'timeoutMs'];
