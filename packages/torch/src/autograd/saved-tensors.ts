/** @file What the graph keeps for backward, packed and unpacked by functions of one's own. */
import { TorchError } from '../base/errors.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { mapTensors, tensorsIn } from '../tensor/tree.ts';
import { addCallback, collectCallbacks, putValue, takeValue } from './callbacks.ts';
import { synchronous } from './modes.ts';
import { engine } from './native.ts';

/**
 * Runs `body`; every tensor its graph keeps for backward goes through `pack`, and comes back through `unpack`.
 *
 * @example savedTensorsHooks((x) => x.to('cpu'), (x) => x.to('cuda'), () => model.forward(input))
 */
export function savedTensorsHooks<Packed, T>(
  pack: (tensor: Tensor) => Packed,
  unpack: (packed: Packed) => Tensor,
  body: () => T,
): T {
  for (const [name, value] of Object.entries({ pack, unpack, body })) {
    if (typeof value !== 'function')
      throw new TorchError('BAD_ARGUMENT', `savedTensorsHooks: ${name} must be a function, got a ${typeof value}`);
  }
  const packId = addCallback(([tensor], id) => {
    // The graph owns what was packed: handles apart from any scope, freed when the graph lets go.
    const value = mapTensors(pack(tensor!), (item) => unscoped(() => item.alias()));
    const owned = tensorsIn(value);
    putValue(id, value, () => owned.forEach((item) => item.dispose()));
    return undefined;
  });
  const unpackId = addCallback((_, id) => {
    const result = unpack(takeValue(id) as Packed);
    if (!(result instanceof Tensor))
      throw new TorchError('BAD_ARGUMENT', `savedTensorsHooks: unpack must return a tensor, got a ${typeof result}`);
    return [result];
  });
  engine.pushSavedHooks(packId, unpackId);
  try {
    return synchronous('savedTensorsHooks', body());
  } finally {
    engine.popSavedHooks();
    collectCallbacks();
  }
}
