/**
 * @file Memory that holds a copy of tensors while a thread writes it to files. It is shared between threads and used again by the
 * next save, because memory that is new costs several times as much to fill.
 */
import { type DType, fromTypedArray, type Tensor, unscoped } from '@pipewright/torch';
import { viewBytes } from '@pipewright/torch/internal';
import { BLOCK } from '../format/manifest.ts';

/** Tensors that are larger lie in several chunks. */
const LARGEST = 256 * BLOCK;

/** Part of the data of a file, in memory. */
export interface Chunk {
  readonly memory: SharedArrayBuffer;
  /** Bytes used. */
  readonly bytes: number;
}

/** Where a tensor lies: in one chunk, or from the beginning of several that follow each other. */
interface Place {
  readonly chunk: number;
  readonly at: number;
}

/** A tensor to be copied. */
export interface CopiedTensor {
  readonly tensor: Tensor;
  readonly dtype: DType;
  readonly bytes: number;
}

interface Block {
  readonly memory: SharedArrayBuffer;
  readonly tensor: Tensor;
}

/** Memory for the copies of one rank. */
export class SnapshotMemory {
  private free: Block[] = [];

  /** Copies tensors, one after the other as they lie in a file. */
  copy(items: readonly CopiedTensor[]): Chunk[] {
    const sizes: number[] = [];
    const places: Place[] = [];
    let open = false;
    for (const { bytes } of items) {
      const last = sizes.length - 1;
      if (open && sizes[last]! + bytes <= LARGEST) {
        places.push({ chunk: last, at: sizes[last]! });
        sizes[last]! += bytes;
        continue;
      }
      places.push({ chunk: sizes.length, at: 0 });
      for (let rest = bytes; ; rest -= LARGEST) {
        sizes.push(Math.min(rest, LARGEST));
        if (rest <= LARGEST) break;
      }
      open = bytes <= LARGEST;
    }
    const blocks = sizes.map((size) => this.take(size));
    items.forEach((item, i) => fill(blocks, places[i]!, item));
    this.used.push(...blocks);
    return blocks.map(({ memory }, i) => ({ memory, bytes: sizes[i]! }));
  }

  private readonly used: Block[] = [];

  /** The copies are no longer needed; their memory is kept for the next ones. */
  release(): void {
    this.free.push(...this.used.splice(0));
  }

  /** Frees all memory. */
  dispose(): void {
    this.release();
    for (const { tensor } of this.free.splice(0)) tensor.dispose();
  }

  private take(bytes: number): Block {
    const fitting = this.free
      .filter(({ memory }) => memory.byteLength >= bytes)
      .sort((a, b) => a.memory.byteLength - b.memory.byteLength)[0];
    if (fitting !== undefined && fitting.memory.byteLength <= 2 * bytes + BLOCK) {
      this.free.splice(this.free.indexOf(fitting), 1);
      return fitting;
    }
    const memory = new SharedArrayBuffer(bytes);
    const tensor = unscoped(() => fromTypedArray(new Uint8Array(memory), [bytes], { share: true }));
    return { memory, tensor };
  }
}

function fill(blocks: readonly Block[], { chunk, at }: Place, { tensor, dtype, bytes }: CopiedTensor): void {
  if (bytes === 0) return;
  const source = tensor.detach();
  if (bytes <= LARGEST) {
    const { tensor: memory } = blocks[chunk]!;
    viewBytes(memory, { offset: at, dtype, shape: source.shape }).copy_(source);
    return;
  }
  const flat = source.contiguous().reshape([-1]);
  const most = LARGEST / dtype.itemSize;
  for (let first = 0, next = chunk; first < flat.numel(); first += most, next++) {
    const count = Math.min(most, flat.numel() - first);
    const { tensor: memory } = blocks[next]!;
    viewBytes(memory, { offset: 0, dtype, shape: [count] }).copy_(flat.narrow(0, first, count));
  }
}
