/**
 * @file Measures the units of a model: the model is cut at all its layers, and the pieces are run one after the other, forward
 * and both halves of the backward, as often as asked for. What autograd keeps is counted, tensor by tensor.
 */
import {
  backward,
  backwardInputsFirst,
  cuda,
  inputBackward,
  nn,
  savedTensorsHooks,
  scope,
  Tensor,
} from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { mapTensors, tensorsIn } from '../base/tree.ts';
import type { GraphModule } from '../execute/graph-module.ts';
import type { GraphProgram } from '../graph/graph-program.ts';
import { flattenRegions } from '../graph/regions.ts';
import { Pipe } from '../pipe/pipe.ts';
import { cutAtLayers, withoutMarks } from '../split/cut.ts';
import { traceModule } from '../trace/trace.ts';
import type { UnitTable } from './search.ts';
import type { UnitCosts } from './unit-costs.ts';
import { kindOfUnit } from './unit-kind.ts';

/** What is measured, and how often. */
export interface MeasureOptions<Output = Tensor, Target = Tensor> {
  /** The loss of a microbatch, which belongs to the last unit. Default: the sum of the outputs. */
  readonly lossFn?: ((output: Output, target: Target) => Tensor) | undefined;
  /** The target of the microbatch. */
  readonly target?: Target;
  /** Runs of each unit, of which the median counts; one more comes first to warm up. Default 5. */
  readonly rounds?: number | undefined;
}

/** What units are measured with. */
export interface MeasureUnitsOptions<Output = Tensor, Target = Tensor> extends MeasureOptions<Output, Target> {
  /** Called before every unit: a barrier of ranks that measure side by side. */
  readonly beforeUnit?: ((unit: number) => void) | undefined;
}

/**
 * The units of a model at the size of an example microbatch.
 *
 * @example planPipeline({ machine: { ranks: 4 }, tables: [measureUnits(model, [x], { lossFn, target })], batch: 64 })
 */
export function measureUnits<Output = Tensor, Target = Tensor>(
  model: nn.Module | GraphProgram,
  mbArgs: readonly unknown[],
  options: MeasureUnitsOptions<Output, Target> = {},
): UnitTable {
  checkOptions('measureUnits', options, ['lossFn', 'target', 'rounds', 'beforeUnit']);
  checkArgument('measureUnits', Array.isArray(mbArgs), ['mbArgs', mbArgs], 'the arguments of one microbatch: [x]');
  const rounds = checkCount('measureUnits', 'rounds', options.rounds ?? 5);
  const program = model instanceof nn.Module ? traceModule(model, mbArgs) : model;
  const isProgram = typeof program === 'object' && program !== null && 'graph' in program && 'state' in program;
  checkArgument('measureUnits', isProgram, ['the model', program], 'a module, or what traceModule or loadPt2 returns');
  const rows = tensorsIn(mbArgs)
    .find((each) => each.dim() > 0)
    ?.size(0);
  if (rows === undefined)
    throw new PipelineError('BAD_ARGUMENT', 'measureUnits: mbArgs holds no tensor with rows; give a microbatch: [x]');
  const order = new Map(flattenRegions(program.graph).nodes.map(({ node }, i) => [node.name, i]));
  const pipe = Pipe.fromTraced({ ...program, graph: cutAtLayers(withoutMarks(program.graph)) });
  const { wiring } = pipe.info();
  return scope(() => {
    const outputs: unknown[] = [];
    const runs = wiring.map(({ inputs }, i): UnitRun => {
      const given =
        i === 0
          ? mbArgs
          : inputs.map(({ stage, output }) => {
              const value = outputs[stage];
              return output === undefined ? value : (value as Record<string, unknown>)[output];
            });
      const module = pipe.getStageModule(i);
      const isLast = i === wiring.length - 1;
      const loss = isLast ? lossOf(options) : undefined;
      const run = new UnitRun(module, given, { loss, isFirst: i === 0 });
      outputs.push(run.plain());
      options.beforeUnit?.(i);
      run.warmUp();
      return run;
    });
    // Round by round, not unit by unit: between two runs of a unit others run, as they do in a stage. A unit that is repeated
    // alone finds its parameters in the processor's cache, which makes small ones look faster than they are.
    for (let round = 0; round < rounds; round++) for (const run of runs) run.time();
    shareTimes(runs);
    let after = -1;
    const units = runs.map((run, i): UnitCosts => {
      const place = placeOf(pipe, i, { order, after });
      after = order.get(place.begins) ?? after;
      return { ...run.costs(), ...place };
    });
    for (const parameter of pipe.parameters()) parameter.grad = null;
    return { rows, units };
  });
}

/** The loss of the last unit or stage. */
export function lossOf<Output, Target>({
  lossFn,
  target,
}: MeasureOptions<Output, Target>): (output: unknown) => Tensor {
  return lossFn === undefined ? sumOf : (output) => lossFn(output as Output, target as Target);
}

/** The sum of all that a model returns: a loss where none is given. */
export function sumOf(output: unknown): Tensor {
  return tensorsIn(output).reduce<Tensor | null>((sum, each) => sum?.add(each.sum()) ?? each.sum(), null)!;
}

/** Units that are the same work get the times of all of them: layers that repeat would differ by nothing but chance. */
function shareTimes(runs: readonly UnitRun[]): void {
  const shared = new Map<string, (Times & Whole)[]>();
  for (const run of runs) {
    const times = shared.get(run.kind) ?? [];
    shared.set(run.kind, times);
    times.push(...run.times);
    run.times = times;
  }
}

/** The module that a unit is, and the first of its nodes. */
function placeOf(
  pipe: Pipe,
  unit: number,
  { order, after }: { readonly order: ReadonlyMap<string, number>; readonly after: number },
): Pick<UnitCosts, 'name' | 'begins'> {
  const part = pipe.split.stages[unit];
  const nodes = flattenRegions(part?.graph ?? { nodes: [] })
    .nodes.map(({ node }) => node)
    .filter(({ name, kind }) => order.has(name) && kind !== 'placeholder' && kind !== 'attribute' && kind !== 'output')
    .sort((a, b) => order.get(a.name)! - order.get(b.name)!);
  const paths = nodes.flatMap(
    ({ modules = [] }) => modules.map(({ path }) => path).find((path) => /(^|\.)\d+(@\d+)?$/.test(path)) ?? [],
  );
  // Flags of the whole model stand before all layers, and belong to the units that read them: no unit begins there.
  const inLayer = nodes.find(({ modules = [] }) => modules.some(({ path }) => path === paths[0]));
  const first = inLayer ?? nodes.find(({ name }) => order.get(name)! > after) ?? nodes[0];
  return {
    name: paths[0] ?? (first?.modules?.at(-1)?.path || (first?.name ?? `unit ${unit}`)),
    begins: first?.name ?? '',
  };
}

/** One unit, run alone. */
class UnitRun {
  /** What was measured; shared by units of one kind in the end. */
  times: (Times & Whole)[] = [];
  /** The same for units that are the same work. */
  readonly kind: string;
  private bytes = 0;
  private readonly module: GraphModule;
  private readonly given: readonly unknown[];
  private readonly loss: ((output: unknown) => Tensor) | undefined;
  private readonly isFirst: boolean;
  private readonly waits: boolean;

  constructor(
    module: GraphModule,
    given: readonly unknown[],
    { loss, isFirst }: { readonly loss: ((output: unknown) => Tensor) | undefined; readonly isFirst: boolean },
  ) {
    this.module = module;
    this.given = given;
    this.loss = loss;
    this.isFirst = isFirst;
    this.waits = [...module.parameters(), ...tensorsIn(given)].some((each) => each.isCuda);
    this.kind = `${isFirst} ${loss !== undefined} ${kindOfUnit(module)}`;
  }

  /** What it gives, without gradients. */
  plain(): unknown {
    return mapTensors(this.forward(this.given), (each) => each.detach());
  }

  /** Counts what it keeps, and runs it once. */
  warmUp(): void {
    this.bytes = scope(() => this.keptBytes());
    scope(() => ({ ...this.round(), ...this.whole() }));
  }

  /** Runs it once more. */
  time(): void {
    this.times.push(scope(() => ({ ...this.round(), ...this.whole() })));
  }

  /** What was found. */
  costs(): Omit<UnitCosts, 'name' | 'begins'> {
    const { bytes, times: settled } = this;
    const received = new Set(tensorsIn(this.given));
    const parameters = this.module.parameters().reduce((sum, each) => sum + each.nbytes, 0);
    return {
      F: median(settled.map(({ F }) => F)),
      I: median(settled.map(({ I }) => I)),
      W: median(settled.map(({ W }) => W)),
      B: median(settled.map(({ B }) => B)),
      // On a GPU gradients leave at the end of a backward.
      ...(this.waits ? {} : { inputGradient: median(settled.map(({ inputGradient }) => inputGradient)) }),
      activation: bytes,
      retained: bytes, // what of it the input half frees is not known: all of it is counted until the weight half
      input: [...received].reduce((sum, each) => sum + each.nbytes, 0),
      parameters,
    };
  }

  private forward(given: readonly unknown[]): unknown {
    return this.module.forward(...given);
  }

  /** Inputs as a stage gets them: leaves that want gradients, except those of the model. */
  private arrive(): { readonly args: unknown[]; readonly leaves: Tensor[] } {
    const leaves: Tensor[] = [];
    const args = this.given.map((value) =>
      mapTensors(value, (each) => {
        const own = each.detach();
        if (this.isFirst || !own.isFloatingPoint()) return own;
        leaves.push(own.requiresGrad_());
        return own;
      }),
    );
    return { args, leaves };
  }

  /** Bytes that autograd keeps of one forward, each memory once; parameters are there anyway. */
  private keptBytes(): number {
    const known = new Set(this.module.parameters().map((each) => each.dataPtr()));
    const kept = new Map<bigint, number>();
    const pack = (each: Tensor): Tensor => {
      const at = each.dataPtr();
      if (!known.has(at)) kept.set(at, Math.max(kept.get(at) ?? 0, each.nbytes));
      return each;
    };
    const { args } = this.arrive();
    savedTensorsHooks(
      pack,
      (each: Tensor) => each,
      () => {
        const output = this.forward(args);
        return this.loss?.(output) ?? output;
      },
    );
    return [...kept.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  private round(): Times {
    const { args, leaves } = this.arrive();
    const start = this.now();
    const output = this.forward(args);
    const made = this.loss === undefined ? tensorsIn(output) : [this.loss(output)];
    const afterForward = this.now();
    const outputs = made.filter((each) => each.requiresGrad);
    if (outputs.length === 0) return { F: afterForward - start, I: 0, W: 0 };
    const gradOutputs = outputs.map((each) => (this.loss === undefined ? each.detach() : null));
    const before = this.now();
    const { weights } = inputBackward({ outputs, gradOutputs, inputs: leaves });
    const between = this.now();
    weights.run();
    return { F: afterForward - start, I: between - before, W: this.now() - between };
  }

  /** Seconds of the whole backward, and until the gradients of the inputs are there. */
  private whole(): Whole {
    return scope(() => {
      const { args, leaves } = this.arrive();
      const output = this.forward(args);
      const made = this.loss === undefined ? tensorsIn(output) : [this.loss(output)];
      const outputs = made.filter((each) => each.requiresGrad);
      if (outputs.length === 0) return { B: 0, inputGradient: 0 };
      const gradTensors = outputs.map((each) => (this.loss === undefined ? each.detach() : null));
      const before = this.now();
      let between = Number.NaN;
      const ready = (): void => {
        between = this.now();
      };
      if (leaves.length === 0 || this.waits) backward(outputs, { gradTensors });
      else backwardInputsFirst(outputs, { gradTensors, inputs: leaves, ready });
      const end = this.now();
      return { B: end - before, inputGradient: (Number.isNaN(between) ? end : between) - before };
    });
  }

  private now(): number {
    if (this.waits) cuda.synchronize();
    return performance.now() / 1000;
  }
}

interface Times {
  readonly F: number;
  readonly I: number;
  readonly W: number;
}

interface Whole {
  readonly B: number;
  readonly inputGradient: number;
}

/** The value in the middle. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)]!;
}
