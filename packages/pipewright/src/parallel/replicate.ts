/**
 * @file Replicas: several ranks hold the same module and train it on different rows. Their gradients are summed once per step,
 * where the schedule says REDUCE_GRAD; nothing is divided here, because losses are weighted by the rows of all replicas.
 */
import { type distributed, nn, noGrad, scope, type Tensor } from '@pipewright/torch';
import { checkArgument, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { compareLines, type Line } from './alike.ts';
import { DeviceMesh } from './device-mesh.ts';
import { spread } from './spread.ts';

/** How a module is replicated. */
export interface ReplicateOptions {
  /** The replicas: a mesh of one dimension. */
  readonly mesh?: DeviceMesh | undefined;
  /** The replicas, as a group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /** Gradients are reduced in pieces of about so many MiB; default 25. */
  readonly bucketCapMb?: number | undefined;
  /** Whether every step begins with the buffers of the first replica; default false: every replica has its own. */
  readonly broadcastBuffers?: boolean | undefined;
  /** Replicas that are threads: one copy of frozen parameters for all of them, which nobody may write to; default false. */
  readonly shareFrozen?: boolean | undefined;
}

/** What is known of a replicated module. */
export interface Replication {
  readonly group: distributed.ProcessGroup;
  readonly bucketBytes: number;
  readonly broadcastBuffers: boolean;
  readonly shareFrozen: boolean;
}

/** The field of a module that says so: a clone has it too. */
const field = 'pipewright:replication';

/**
 * Makes a module one of several replicas; a runtime that gets it in a stage sums its gradients over them. All replicas call
 * it. A clone of the module is replicated too. Returns the module.
 *
 * @example const stage = new PipelineStage(replicate(blocks, { mesh: mesh.get('dp') }), mesh.getLocalRank('pp'), 2)
 */
export function replicate<Module extends nn.Module>(module: Module, options: ReplicateOptions): Module {
  checkArgument(
    'replicate',
    typeof options === 'object' && options !== null,
    ['the options', options],
    '{ mesh } or { group }',
  );
  checkOptions('replicate', options, ['mesh', 'group', 'bucketCapMb', 'broadcastBuffers', 'shareFrozen']);
  if (!(module instanceof nn.Module))
    throw new PipelineError('BAD_INPUT', `replicate: the first argument is ${show(module)}; give a module`);
  const { mesh, bucketCapMb = 25, broadcastBuffers = false, shareFrozen = false } = options;
  if (mesh !== undefined && (!(mesh instanceof DeviceMesh) || mesh.ndim !== 1))
    throw new PipelineError(
      'BAD_OPTION',
      `replicate: the mesh is ${mesh instanceof DeviceMesh ? String(mesh) : show(mesh)}; give one dimension of it, such as mesh.get('dp')`,
    );
  if (
    options.group !== undefined &&
    typeof (options.group as distributed.ProcessGroup | null)?.allGatherObject !== 'function'
  )
    throw new PipelineError(
      'BAD_OPTION',
      `replicate: the group is ${show(options.group)}; give a process group, or { mesh: mesh.get('dp') }`,
    );
  const group = options.group ?? mesh?.getGroup();
  if (group === undefined)
    throw new PipelineError('BAD_OPTION', "replicate: say which ranks are the replicas: { mesh: mesh.get('dp') }");
  if (!(typeof bucketCapMb === 'number' && bucketCapMb > 0))
    throw new PipelineError('BAD_OPTION', `replicate: bucketCapMb is ${show(bucketCapMb)}; give a number above 0`);
  if (typeof shareFrozen !== 'boolean')
    throw new PipelineError('BAD_OPTION', `replicate: shareFrozen is ${show(shareFrozen)}; give true or false`);
  Reflect.set(module, field, {
    group,
    bucketBytes: bucketCapMb * 2 ** 20,
    broadcastBuffers,
    shareFrozen,
  } satisfies Replication);
  return module;
}

/** PyTorch's name for a replicated module: the module itself is what is used afterwards. */
export const DistributedDataParallel: typeof replicate = replicate;

/** How a module is replicated; null where it is not. */
export function replicationOf(module: nn.Module): Replication | null {
  return (Reflect.get(module, field) as Replication | undefined) ?? null;
}

/** The name of a module inside of another one that is replicated by itself; null where there is none. */
export function replicatedInside(module: nn.Module): string | null {
  for (const [name, inner] of module.namedModules())
    if (inner !== module && (replicationOf(inner)?.group.size ?? 1) > 1) return name;
  return null;
}

/** Refuses replicas that differ, naming the first difference. */
export function compareReplicas(module: nn.Module, replication: Replication): void {
  const { group, bucketBytes, broadcastBuffers, shareFrozen } = replication;
  const lines: Line[] = [
    ['bucketCapMb', String(bucketBytes / 2 ** 20)],
    ['broadcastBuffers', String(broadcastBuffers)],
    ['shareFrozen', String(shareFrozen)],
    ...module
      .namedParameters()
      .map(
        ([name, each]): Line => [`the parameter '${name}'`, `${typeOf(each)}${each.requiresGrad ? '' : ', frozen'}`],
      ),
    ...module.namedBuffers().map(([name, each]): Line => [`the buffer '${name}'`, typeOf(each)]),
  ];
  compareLines(lines, {
    where: 'replicate',
    group,
    remedy: 'replicas have the same options and modules of the same parameters',
  });
}

function typeOf({ dtype, shape }: Tensor): string {
  return `${dtype.name}[${shape.join(', ')}]`;
}

/** Gives all replicas the parameters and buffers of the first one. */
export function equalize(module: nn.Module, { group }: Replication): void {
  noGrad(() => scope(() => spread([...module.parameters(), ...module.buffers()], group)));
}

/** Gives all replicas the buffers of the first one. */
export function equalizeBuffers(module: nn.Module, { group }: Replication): void {
  noGrad(() => scope(() => spread(module.buffers(), group)));
}
