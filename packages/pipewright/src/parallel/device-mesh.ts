/**
 * @file A mesh: all ranks laid out in several dimensions with names, such as pipeline and data, and a group for every line
 * along each of them. The last dimension varies fastest, so that the first one (the pipeline) is the outermost.
 */
import { distributed } from '@pipewright/torch';
import { checkArgument, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { compareLines } from './alike.ts';

/** Where the ranks of a mesh compute. */
export type MeshDevice = 'cpu' | 'cuda';

/**
 * Lays all ranks out as a mesh and makes its groups. All ranks call it, with the same arguments.
 *
 * @example const mesh = initDeviceMesh('cpu', [2, 2], ['pp', 'dp']); mesh.getLocalRank('pp')
 */
export function initDeviceMesh(
  deviceType: MeshDevice,
  shape: readonly number[],
  dimNames: readonly string[] = Array.from(Array.isArray(shape) ? shape : [], (_, dim) => `dim${dim}`),
): DeviceMesh {
  if (deviceType !== 'cpu' && deviceType !== 'cuda')
    throw new PipelineError('BAD_OPTION', `initDeviceMesh: the device is ${show(deviceType)}; give 'cpu' or 'cuda'`);
  if (!Array.isArray(shape) || shape.length === 0 || !shape.every((size) => Number.isInteger(size) && size > 0))
    throw new PipelineError(
      'BAD_OPTION',
      `initDeviceMesh: the shape is ${show(shape)}; give the size of every dimension, such as [2, 2]`,
    );
  if (
    !Array.isArray(dimNames) ||
    dimNames.length !== shape.length ||
    new Set(dimNames).size !== dimNames.length ||
    !dimNames.every((name) => typeof name === 'string' && name !== '')
  )
    throw new PipelineError(
      'BAD_OPTION',
      `initDeviceMesh: the names are ${show(dimNames)}; give a different name for each of the ${shape.length} dimensions, such as ['pp', 'dp']`,
    );
  if (!distributed.isInitialized())
    throw new PipelineError('BAD_OPTION', 'initDeviceMesh: there is no default group; call initProcessGroup() first');
  const world = distributed.getDefaultGroup();
  const count = shape.reduce((product, size) => product * size, 1);
  if (count !== world.size)
    throw new PipelineError(
      'BAD_OPTION',
      `initDeviceMesh: a mesh of ${shape.join(' x ')} has ${count} ranks, but there are ${world.size}; make the product of the shape equal to the number of ranks`,
      { shape, ranks: world.size },
    );
  compareLines(
    [
      ['the device', deviceType],
      ['the shape', `[${shape.join(', ')}]`],
      ['the list of names', `[${dimNames.join(', ')}]`],
    ],
    { where: 'initDeviceMesh', group: world, remedy: 'give all ranks the same' },
  );
  const groups = shape.map((size, dim) => groupAlong(world, { shape, dim, size, name: dimNames[dim] as string }));
  return new DeviceMesh({ deviceType, shape, dimNames, rank: world.rank, groups });
}

interface Line {
  readonly shape: readonly number[];
  readonly dim: number;
  readonly size: number;
  readonly name: string;
}

/** This rank's group along a dimension. Every rank makes all groups of it in the same order: that is how they find each other. */
function groupAlong(world: distributed.ProcessGroup, { shape, dim, size, name }: Line): distributed.ProcessGroup {
  if (size === world.size) return world;
  const stride = shape.slice(dim + 1).reduce((product, other) => product * other, 1);
  let mine: distributed.ProcessGroup | null = null;
  for (let rank = 0; rank < world.size; rank++) {
    if (Math.floor(rank / stride) % size !== 0) continue; // not the first of its line
    const ranks = Array.from({ length: size }, (_, i) => rank + i * stride);
    mine = world.newGroup(ranks, { name }) ?? mine;
  }
  return mine!;
}

/** What a mesh is made of. */
interface MeshParts {
  readonly deviceType: MeshDevice;
  readonly shape: readonly number[];
  readonly dimNames: readonly string[];
  readonly rank: number;
  readonly groups: readonly distributed.ProcessGroup[];
}

/** Ranks in several dimensions. */
export class DeviceMesh {
  readonly deviceType: MeshDevice;
  readonly shape: readonly number[];
  readonly dimNames: readonly string[];
  /** This rank among all. */
  readonly rank: number;
  private readonly groups: readonly distributed.ProcessGroup[];

  constructor(parts: MeshParts) {
    const isParts = [parts?.shape, parts?.dimNames, parts?.groups].every(Array.isArray);
    checkArgument('DeviceMesh', isParts, ['the argument', parts], 'what initDeviceMesh makes; call that');
    const { deviceType, shape, dimNames, rank, groups } = parts;
    this.deviceType = deviceType;
    this.shape = [...shape];
    this.dimNames = [...dimNames];
    this.rank = rank;
    this.groups = groups;
  }

  /** Number of dimensions. */
  get ndim(): number {
    return this.shape.length;
  }

  /** The group of this rank along a dimension; the only one where none is named. */
  getGroup(dim?: string | number): distributed.ProcessGroup {
    return this.groups[this.dimOf('getGroup', dim)]!;
  }

  /** This rank's place along a dimension. */
  getLocalRank(dim?: string | number): number {
    return this.getGroup(dim).rank;
  }

  /** This rank's place along all dimensions. */
  getCoordinate(): number[] {
    return this.groups.map(({ rank }) => rank);
  }

  /** Number of ranks along a dimension, or of all. */
  size(dim?: string | number): number {
    if (dim === undefined) return this.shape.reduce((product, size) => product * size, 1);
    return this.shape[this.dimOf('size', dim)]!;
  }

  /**
   * The part of the mesh with the named dimensions that this rank is in.
   *
   * @example const data = mesh.get('dp'); data.size()
   */
  get(...dimNames: readonly string[]): DeviceMesh {
    const dims = dimNames.map((name) => this.dimOf('get', name));
    if (dims.length === 0 || new Set(dims).size !== dims.length)
      throw new PipelineError(
        'BAD_OPTION',
        `DeviceMesh.get: name one or more of ${this.dimNames.join(', ')}, each once`,
      );
    return new DeviceMesh({
      deviceType: this.deviceType,
      shape: dims.map((dim) => this.shape[dim]!),
      dimNames,
      rank: this.rank,
      groups: dims.map((dim) => this.groups[dim]!),
    });
  }

  /** The mesh in one line. */
  toString(): string {
    const dims = this.dimNames.map((name, dim) => `${name}=${this.shape[dim]}`).join(', ');
    return `DeviceMesh(${this.deviceType}, ${dims}; rank ${this.rank} at ${this.getCoordinate().join(', ')})`;
  }

  private dimOf(where: string, dim: string | number | undefined): number {
    if (dim === undefined && this.ndim === 1) return 0;
    const found = typeof dim === 'number' ? dim : this.dimNames.indexOf(dim ?? '');
    if (Number.isInteger(found) && found >= 0 && found < this.ndim) return found;
    throw new PipelineError(
      'BAD_OPTION',
      `DeviceMesh.${where}: ${dim === undefined ? 'no dimension was named' : `there is no dimension ${show(dim)}`}; the mesh has ${this.dimNames.join(', ')}`,
    );
  }
}
