/**
 * @file Shards: several ranks divide the state of a module among them. Its parameters become this rank's shards, which is what
 * optimizers see; a runtime that gets the module in a stage gathers it where the schedule says UNSHARD, frees it at RESHARD and
 * sums gradients at REDUCE_GRAD, so that each rank has those of its shards.
 */
import { DType, type distributed, nn, noGrad, scope, type Tensor, toDType } from '@pipewright/torch';
import { checkArgument, checkChoice, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { mapTensors } from '../base/tree.ts';
import { compareLines, type Line } from './alike.ts';
import { DeviceMesh } from './device-mesh.ts';
import { shardOf } from './shard.ts';
import { ShardUnit } from './shard-unit.ts';
import type { Cut } from './sharded-parameter.ts';
import { spread } from './spread.ts';
import type { ShardLevel, UnitSettings } from './unit-settings.ts';

/** In which types a sharded module computes and its gradients are summed. */
export interface MixedPrecisionPolicy {
  /** What is computed with; shards and their optimizer keep the type of the parameters. Default: that type. */
  readonly paramDtype?: DType | DType['name'] | undefined;
  /** What gradients are summed in; default: `paramDtype`. */
  readonly reduceDtype?: DType | DType['name'] | undefined;
  /** What floating-point outputs of the module are turned into; default: they stay. */
  readonly outputDtype?: DType | DType['name'] | undefined;
  /** Whether floating-point inputs of the module are turned into `paramDtype`; default true. */
  readonly castForwardInputs?: boolean | undefined;
}

/** How a module is sharded. */
export interface FullyShardOptions {
  /** The ranks that divide it: one dimension of a mesh, or two, of which the first are replicas and the second the shards. */
  readonly mesh: DeviceMesh;
  /** What is divided: the optimizer's states, also the gradients, also the parameters (default). */
  readonly level?: ShardLevel | undefined;
  /**
   * With level `parameters`: false (default), a stage stays whole from its first use in a step to its last; true, only while no
   * other stage of its rank is needed.
   */
  readonly reshardAfterForward?: boolean | undefined;
  /** Computing in another type than that of the parameters. */
  readonly mpPolicy?: MixedPrecisionPolicy | undefined;
  /** Parameters that stay whole, and whose gradients are not summed. */
  readonly ignoredParams?: Iterable<Tensor> | undefined;
  /** Modules inside that are each gathered and reduced as one; what is in none of them is one more. Default: all is one. */
  readonly units?: readonly nn.Module[] | undefined;
  /** The dimension that a parameter is cut along; default: the first. */
  readonly shardPlacementFn?: ((parameter: nn.Parameter, name: string) => number | undefined) | undefined;
}

const optionNames = ['mesh', 'level', 'reshardAfterForward', 'mpPolicy', 'ignoredParams', 'units', 'shardPlacementFn'];
const policyNames = ['paramDtype', 'reduceDtype', 'outputDtype', 'castForwardInputs'];

const unitsOfParameters = new WeakMap<Tensor, ShardUnit>();
/** Modules that `fullyShard` was called with, and how; there may be nothing in them to divide. */
const wrapped = new WeakMap<nn.Module, UnitSettings>();
/** Parameters that stay whole because `ignoredParams` had them. */
const ignoredParameters = new WeakSet<Tensor>();
const unitCounts = new WeakMap<distributed.ProcessGroup, number>();

/**
 * Divides the parameters of a module among ranks; those of modules inside that were sharded before stay as they are. All ranks
 * of the mesh call it, with modules of the same shapes, after they were moved to their device and before optimizers take a step.
 * Parameters begin with the values of the first rank. Called again when the groups are closed, as in `connect` of `trainLoop`,
 * it keeps the shards and goes on with the new mesh. Returns the module.
 *
 * @example const stage = new PipelineStage(fullyShard(blocks, { mesh: mesh.get('dp') }), mesh.getLocalRank('pp'), 2)
 */
export function fullyShard<Module extends nn.Module>(module: Module, options: FullyShardOptions): Module {
  checkArgument(
    'fullyShard',
    typeof options === 'object' && options !== null,
    ['the options', options],
    '{ mesh } or { group }',
  );
  checkOptions('fullyShard', options, optionNames);
  if (!(module instanceof nn.Module))
    throw new PipelineError('BAD_INPUT', `fullyShard: the first argument is ${show(module)}; give a module`);
  const policy = checkPolicy(options.mpPolicy ?? {});
  const settings = settingsOf(options, policy);
  const ignored = new Set<Tensor>(options.ignoredParams ?? []);
  for (const parameter of ignored) ignoredParameters.add(parameter);
  const names = new Map(module.namedParameters().map(([name, parameter]) => [parameter, name]));
  const free = [...names.keys()].filter((parameter) => !unitsOfParameters.has(parameter) && !ignored.has(parameter));
  const learned = settings.level === 'parameters' ? free : free.filter(({ requiresGrad }) => requiresGrad);
  const cuts = learned.map((parameter): Cut => {
    const name = names.get(parameter)!;
    return { parameter, name, dim: dimOf(parameter, name, options) };
  });
  if (cuts.length === 0 && wrapped.get(module)?.group.isOpen === true)
    throw new PipelineError(
      'BAD_INPUT',
      'fullyShard: this module is sharded already, and a second call would change nothing; call it once for each module, with all options',
    );
  const before = unitsOf(module).filter((unit) => !unit.settings.group.isOpen);
  checkPlaces(before, settings);
  const groups = groupsOf(module, cuts, options.units ?? []);
  const continues = compare(
    [
      ...descriptions(names, [...cuts, ...before.flatMap((unit) => unit.cuts)], settings),
      ...[...before.map((unit) => unit.cuts), ...groups].map(
        (unit, i): Line => [`unit ${i}`, unit.map(({ name }) => name).join(', ')],
      ),
    ],
    settings,
    before,
  );
  if (!continues)
    noGrad(() =>
      scope(() => {
        for (const group of [settings.replicas, settings.group])
          if (group !== null && group.size > 1) spread([...free, ...module.buffers()], group);
      }),
    );
  for (const unit of before) unit.follow(settings, nextKey(settings));
  for (const list of groups) makeUnit(settings, list);
  wrapped.set(module, settings);
  if (before.length > 0) return module; // its hooks are there
  if (policy.paramDtype !== null && options.mpPolicy?.castForwardInputs !== false)
    module.registerForwardPreHook((_, inputs) => cast(inputs, policy.paramDtype!));
  if (policy.outputDtype !== null) module.registerForwardHook((_, __, output) => cast(output, policy.outputDtype!));
  return module;
}

/**
 * Runs something with the whole parameters of a sharded module in their place: reading a model, evaluating it alone. What
 * is changed in them is lost, gradients included. All ranks call it.
 *
 * @example withWholeParameters(module, () => module.forward(x))
 */
export function withWholeParameters<T>(module: nn.Module, body: () => T): T {
  checkArgument('withWholeParameters', module instanceof nn.Module, ['the first argument', module], 'a module');
  checkArgument('withWholeParameters', typeof body === 'function', ['the second argument', body], 'a function');
  const units = unitsOf(module);
  for (const unit of units) unit.gather();
  const restores = units.map((unit) => unit.putGradsAside());
  try {
    for (const unit of units) unit.wait();
    const result = body();
    for (const unit of units) unit.settleShared();
    return result;
  } finally {
    for (const restore of restores) restore();
    for (const unit of units) unit.release();
  }
}

/** The units that the parameters of a module belong to, each once. */
export function unitsOf(module: nn.Module): ShardUnit[] {
  return [...new Set(module.parameters().flatMap((parameter) => unitsOfParameters.get(parameter) ?? []))];
}

/** How a module is divided, also where it has nothing that could be: no parameters, or only frozen ones; null where it is not. */
export function shardingOf(module: nn.Module): UnitSettings | null {
  const [unit] = unitsOf(module);
  if (unit !== undefined) return unit.settings;
  for (const part of module.modules()) {
    const settings = wrapped.get(part);
    if (settings !== undefined) return settings;
  }
  return null;
}

/** The name of a parameter that each rank would learn for itself: it is in no unit, and nobody said so. */
export function unshardedName(module: nn.Module, parameters: readonly nn.Parameter[]): string | null {
  const isLeftOut = (parameter: nn.Parameter): boolean =>
    !unitsOfParameters.has(parameter) && !ignoredParameters.has(parameter) && parameter.requiresGrad;
  if (!parameters.some(isLeftOut)) return null;
  return module.namedParameters().find(([, parameter]) => isLeftOut(parameter))?.[0] ?? null;
}

/** The name of one more unit of a group; the same on all its ranks. */
function nextKey({ group }: UnitSettings): string {
  const count = unitCounts.get(group) ?? 0;
  unitCounts.set(group, count + 1);
  return `${group.name} unit ${count}`;
}

function makeUnit(settings: UnitSettings, cuts: readonly Cut[]): void {
  const unit = new ShardUnit(settings, cuts, nextKey(settings));
  for (const { parameter } of cuts) unitsOfParameters.set(parameter, unit);
}

/** The parameters by unit, type and device. */
function groupsOf(module: nn.Module, cuts: readonly Cut[], units: readonly nn.Module[]): Cut[][] {
  const inside = new Set(module.modules());
  for (const unit of units)
    if (!inside.has(unit))
      throw new PipelineError(
        'BAD_OPTION',
        `fullyShard: units has ${show(unit)}, which is no part of the module; give modules inside of it`,
      );
  const owners = new Map<Tensor, number>();
  units.forEach((unit, i) => {
    for (const parameter of unit.parameters()) if (!owners.has(parameter)) owners.set(parameter, i);
  });
  const groups = new Map<string, Cut[]>();
  for (const cut of cuts) {
    const { dtype, device } = cut.parameter;
    const key = `${owners.get(cut.parameter) ?? 'rest'} ${dtype.name} ${device}`;
    const list = groups.get(key);
    if (list === undefined) groups.set(key, [cut]);
    else list.push(cut);
  }
  return [...groups.values()];
}

interface Policy {
  readonly paramDtype: DType | null;
  readonly reduceDtype: DType | null;
  readonly outputDtype: DType | null;
}

function checkPolicy(policy: MixedPrecisionPolicy): Policy {
  checkOptions('fullyShard: mpPolicy', policy, policyNames);
  const typeOf = (name: 'paramDtype' | 'reduceDtype' | 'outputDtype'): DType | null => {
    const given = policy[name];
    if (given === undefined) return null;
    const dtype = toDType(given);
    if (dtype.name.startsWith('float') || dtype.name === 'bfloat16') return dtype;
    throw new PipelineError(
      'BAD_OPTION',
      `fullyShard: mpPolicy.${name} is ${dtype.name}; give a floating-point type such as 'bfloat16'`,
    );
  };
  const paramDtype = typeOf('paramDtype');
  return { paramDtype, reduceDtype: typeOf('reduceDtype') ?? paramDtype, outputDtype: typeOf('outputDtype') };
}

function settingsOf(options: FullyShardOptions, policy: Policy): UnitSettings {
  const { mesh, reshardAfterForward = false } = options;
  if (!(mesh instanceof DeviceMesh) || mesh.ndim > 2)
    throw new PipelineError(
      'BAD_OPTION',
      `fullyShard: the mesh is ${mesh instanceof DeviceMesh ? String(mesh) : show(mesh)}; give one dimension, mesh.get('dp'), or two, replicas and shards: mesh.get('replicate', 'shard')`,
    );
  if (typeof reshardAfterForward !== 'boolean')
    throw new PipelineError(
      'BAD_OPTION',
      `fullyShard: reshardAfterForward is ${show(reshardAfterForward)}; give true or false`,
    );
  const replicas = mesh.ndim === 2 ? mesh.getGroup(0) : null;
  return {
    group: mesh.getGroup(mesh.ndim - 1),
    replicas: replicas !== null && replicas.size > 1 ? replicas : null,
    level: checkChoice('fullyShard', 'level', options.level ?? 'parameters', ['optimizer', 'gradients', 'parameters']),
    paramDtype: policy.paramDtype,
    reduceDtype: policy.reduceDtype,
    reshardAfterForward,
  };
}

function dimOf(parameter: nn.Parameter, name: string, { shardPlacementFn }: FullyShardOptions): number {
  const { shape } = parameter;
  if (parameter.isMeta)
    throw new PipelineError(
      'BAD_INPUT',
      `fullyShard: the parameter '${name}' is a meta tensor, which has no values; load or initialise it first`,
      { parameter: name },
    );
  if (shape.length === 0)
    throw new PipelineError(
      'BAD_INPUT',
      `fullyShard: the parameter '${name}' has no dimension to cut along; give it the shape [1], or name it in ignoredParams`,
      { parameter: name },
    );
  const dim = shardPlacementFn?.(parameter, name) ?? 0;
  if (Number.isInteger(dim) && dim >= 0 && dim < shape.length) return dim;
  throw new PipelineError(
    'BAD_OPTION',
    `fullyShard: shardPlacementFn gave ${show(dim)} for '${name}' of shape [${shape.join(', ')}]; give a dimension from 0 to ${shape.length - 1}`,
    { parameter: name },
  );
}

/** Units go on where they were: the same number of ranks, the same part, the same level. */
function checkPlaces(units: readonly ShardUnit[], { group, level }: UnitSettings): void {
  for (const unit of units) {
    const { group: old, level: oldLevel } = unit.settings;
    if (old.size === group.size && old.rank === group.rank && oldLevel === level) continue;
    throw new PipelineError(
      'BAD_OPTION',
      `fullyShard: ${String(unit)} is part ${old.rank} of ${old.size} at level '${oldLevel}' and cannot become part ${group.rank} of ${group.size} at level '${level}'; save a checkpoint and load it at the new layout`,
    );
  }
}

/** What all ranks must have alike: options, then the parameters in the order of the module. */
function descriptions(
  names: ReadonlyMap<nn.Parameter, string>,
  cuts: readonly Cut[],
  { level, paramDtype, reduceDtype, reshardAfterForward }: UnitSettings,
): Line[] {
  const dims = new Map(cuts.map(({ parameter, dim }) => [parameter, dim]));
  const parameters = [...names].flatMap(([parameter, name]): Line[] => {
    const dim = dims.get(parameter);
    if (dim === undefined) return [];
    const shape = shardOf(parameter)?.globalShape ?? parameter.shape;
    return [
      [
        `the parameter '${name}'`,
        `${parameter.dtype.name}[${shape.join(', ')}] along ${dim}${parameter.requiresGrad ? '' : ', frozen'}`,
      ],
    ];
  });
  return [
    ['level', `'${level}'`],
    ['mpPolicy.paramDtype', String(paramDtype?.name)],
    ['mpPolicy.reduceDtype', String(reduceDtype?.name)],
    ['reshardAfterForward', String(reshardAfterForward)],
    ...parameters,
  ];
}

/** Refuses modules that differ between ranks, naming the first difference. Returns whether any rank goes on with shards. */
function compare(lines: readonly Line[], { group, replicas }: UnitSettings, before: readonly ShardUnit[]): boolean {
  let continues = before.length > 0;
  // First along one dimension, then along the other: so all of both come to know.
  for (const each of [replicas, group]) {
    if (each === null || each.size === 1) continue;
    const remedy = 'all ranks give the same options and shard modules of the same parameters';
    compareLines(lines, { where: 'fullyShard', group: each, remedy });
    continues = (each.allGatherObject(continues) as boolean[]).includes(true);
  }
  return continues;
}

function cast(value: unknown, dtype: DType): unknown {
  return mapTensors(value, (each) => (each.isFloatingPoint() && each.dtype !== dtype ? each.to(dtype) : each));
}

/** Whether any parameter of a module is sharded. */
export function isSharded(module: nn.Module): boolean {
  return module.parameters().some((parameter) => shardOf(parameter) !== null);
}
