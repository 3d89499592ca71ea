/** @file Samples as one batch. */
import { fromTypedArray, stack, Tensor, type TypedArray, tensor } from '@pipewright/torch';
import { isPlainObject } from '@pipewright/torch/internal';
import { checkArgument, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/**
 * Makes a batch of samples: tensors and typed arrays are stacked, numbers and booleans become a tensor, arrays and objects are
 * collated item by item, everything else becomes a list. Whole numbers make int64, as in `tensor()`.
 *
 * @example defaultCollate([{ x: new Float32Array(2), y: 1 }, { x: new Float32Array(2), y: 0 }]) // { x: [2, 2], y: [2] }
 */
export function defaultCollate(samples: readonly unknown[]): unknown {
  const isBatch = Array.isArray(samples) && samples.length > 0;
  checkArgument('defaultCollate', isBatch, ['the argument', samples], 'an array of one or more samples');
  return collate([...samples], '');
}

function collate(samples: readonly unknown[], path: string): unknown {
  const [first] = samples;
  if (samples.every((one) => one instanceof Tensor)) return stack(samples as readonly Tensor[]);
  if (samples.every((one) => typeof one === 'number') || samples.every((one) => typeof one === 'boolean'))
    return tensor(samples as readonly number[]);
  if (samples.every(isTypedArray)) return stackArrays(samples as readonly TypedArray[], path);
  if (Array.isArray(first)) {
    const { length } = first;
    const odd = samples.findIndex((one) => !Array.isArray(one) || one.length !== length);
    if (odd >= 0) throw different(path, odd, `an array of ${length}`, samples[odd]);
    return first.map((_, i) =>
      collate(
        samples.map((one) => (one as unknown[])[i]),
        `${path}[${i}]`,
      ),
    );
  }
  if (isPlainObject(first)) {
    const keys = Object.keys(first);
    const odd = samples.findIndex((one) => !isPlainObject(one) || keys.some((key) => !(key in one)));
    if (odd >= 0) throw different(path, odd, `an object with ${keys.join(', ')}`, samples[odd]);
    return Object.fromEntries(
      keys.map((key) => [
        key,
        collate(
          samples.map((one) => Reflect.get(one as object, key) as unknown),
          `${path}.${key}`,
        ),
      ]),
    );
  }
  return [...samples];
}

function isTypedArray(value: unknown): value is TypedArray {
  return ArrayBuffer.isView(value) && !(value instanceof DataView);
}

function stackArrays(samples: readonly TypedArray[], path: string): Tensor {
  const [first] = samples as readonly [TypedArray];
  const odd = samples.findIndex((one) => one.length !== first.length || one.constructor !== first.constructor);
  if (odd >= 0) throw different(path, odd, `a ${first.constructor.name} of ${first.length}`, samples[odd]);
  const make = first.constructor as new (length: number) => TypedArray;
  const all = new make(first.length * samples.length);
  const bytes = new Uint8Array(all.buffer);
  samples.forEach((one, i) => {
    bytes.set(new Uint8Array(one.buffer, one.byteOffset, one.byteLength), i * first.byteLength);
  });
  return fromTypedArray(all, [samples.length, first.length]);
}

function different(path: string, at: number, wanted: string, got: unknown): PipelineError {
  const name = path === '' ? 'samples' : `'${path.replace(/^\./, '')}' of samples`;
  const shown =
    ArrayBuffer.isView(got) && 'length' in got ? `a ${got.constructor.name} of ${String(got.length)}` : show(got);
  return new PipelineError(
    'BAD_SAMPLE',
    `collate: ${name} in one batch must be alike: the first is ${wanted}, the one at place ${at} is ${shown}; make them alike, or give collateFn`,
    { place: at },
  );
}
