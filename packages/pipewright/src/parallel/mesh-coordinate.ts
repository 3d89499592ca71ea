/** @file Where a rank stands in a mesh, before any group is joined. */
import { distributed } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/**
 * This rank's place along every dimension of a mesh, as `initDeviceMesh` lays it out. It is known before the ranks connect, from what
 * the launcher says.
 *
 * @example const [pp, dp] = meshCoordinate([4, 2])
 */
export function meshCoordinate(shape: readonly number[]): number[] {
  if (!Array.isArray(shape) || shape.length === 0 || !shape.every((size) => Number.isInteger(size) && size > 0))
    throw new PipelineError(
      'BAD_OPTION',
      `meshCoordinate: the shape is ${show(shape)}; give the size of every dimension, such as [2, 2]`,
    );
  const { RANK = '0', WORLD_SIZE = '1' } = distributed.rankEnvironment();
  const count = shape.reduce((product, size) => product * size, 1);
  if (count !== Number(WORLD_SIZE))
    throw new PipelineError(
      'BAD_OPTION',
      `meshCoordinate: a mesh of ${shape.join(' x ')} has ${count} ranks, but there are ${WORLD_SIZE}; make the product of the shape equal to the number of ranks`,
      { shape, ranks: Number(WORLD_SIZE) },
    );
  let rest = Number(RANK);
  const place: number[] = [];
  for (const size of shape.toReversed()) {
    place.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return place;
}
