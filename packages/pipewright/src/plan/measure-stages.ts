/**
 * @file Measures the stages of a pipe as they will run: each alone, with what arrives in messages, forward and backward, whole and
 * in halves. Times are medians; what a stage holds after every action is counted, byte by byte.
 */
import type { HeldValues, StageCosts, StageInputMemory, StageMemory } from '@pipewright/schedule';
import { cuda, keep, liveBytes, ones, scope, type Tensor, zerosLike } from '@pipewright/torch';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { mapTensors, tensorsIn } from '../base/tree.ts';
import { Pipe } from '../pipe/pipe.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import { pick } from '../stage/wiring.ts';
import { lossOf, type MeasureOptions, median } from './measure-units.ts';

/** A stage as it was measured. */
export interface MeasuredStage {
  readonly costs: StageCosts;
  /** What it holds; counted on the CPU. */
  readonly memory: StageMemory | null;
}

/** What stages are measured with. */
export interface MeasureStagesOptions<Output = Tensor, Target = Tensor> extends MeasureOptions<Output, Target> {
  /** Called before every stage: a barrier of ranks that measure side by side. */
  readonly beforeStage?: ((stage: number) => void) | undefined;
}

/**
 * The stages of a pipe at the size of an example microbatch.
 *
 * @example const [first] = measureStages(pipeline(program, { plan }), [x], { lossFn, target }); console.log(first.costs.F)
 */
export function measureStages<Output = Tensor, Target = Tensor>(
  pipe: Pipe,
  mbArgs: readonly unknown[],
  options: MeasureStagesOptions<Output, Target> = {},
): MeasuredStage[] {
  checkOptions('measureStages', options, ['lossFn', 'target', 'rounds', 'beforeStage']);
  checkArgument('measureStages', pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline(model, { plan }) returns');
  checkArgument('measureStages', Array.isArray(mbArgs), ['mbArgs', mbArgs], 'the arguments of one microbatch: [x]');
  const rounds = checkCount('measureStages', 'rounds', options.rounds ?? 5);
  const takers = takersOf(pipe);
  return scope(() => {
    const outputs: unknown[] = [];
    return Array.from({ length: pipe.numStages }, (_, index): MeasuredStage => {
      const run = new StageRun(pipe, index, {
        args: index === 0 ? mbArgs : [],
        outputs,
        takers: takers[index] ?? [],
        loss: index === pipe.numStages - 1 ? lossOf(options) : undefined,
      });
      outputs.push(run.plain());
      options.beforeStage?.(index);
      return run.measure(rounds);
    });
  });
}

/** The stages that take from each stage. */
function takersOf(pipe: Pipe): number[][] {
  const takers = Array.from({ length: pipe.numStages }, (): number[] => []);
  for (const [from, to] of pipe.info().edges) takers[from]?.push(to);
  return takers;
}

interface Surroundings {
  readonly args: readonly unknown[];
  /** What the stages before returned. */
  readonly outputs: readonly unknown[];
  readonly takers: readonly number[];
  readonly loss: ((output: unknown) => Tensor) | undefined;
}

/** Counts of one microbatch after its actions. */
interface Counts {
  readonly forward: number;
  readonly inputHalf: number;
  readonly end: number;
}

/** One stage, run alone, one microbatch at a time. */
class StageRun {
  private readonly pipe: Pipe;
  private readonly index: number;
  private readonly around: Surroundings;
  private readonly stage: PipelineStage;
  private readonly waits: boolean;
  private losses: Tensor[] = [];
  /** What gradients come back for, by the stage that takes it. */
  private readonly sent = new Map<number, readonly Pick<Tensor, 'shape' | 'dtype' | 'device'>[]>();

  constructor(pipe: Pipe, index: number, around: Surroundings) {
    this.pipe = pipe;
    this.index = index;
    this.around = around;
    this.stage = pipe.buildStage(index);
    this.waits = [...this.stage.module.parameters(), ...tensorsIn(around.args)].some((each) => each.isCuda);
  }

  /** What it returns, for the stages after it. */
  plain(): unknown {
    return scope(() => {
      this.arrive();
      const output = this.stage.forwardOneChunk(0, this.around.args);
      const kept = mapTensors(output, (each) => {
        const own = each.detach();
        return each.requiresGrad ? own.requiresGrad_() : own;
      });
      this.stage.forget(0);
      return kept;
    });
  }

  measure(rounds: number): MeasuredStage {
    const times = { F: [] as number[], B: [] as number[], I: [] as number[], W: [] as number[] };
    for (let round = 0; round <= rounds; round++)
      for (const full of [true, false])
        scope(() => {
          const { F, B, I, W } = this.time(full);
          if (round === 0) return; // warms up
          times.F.push(F);
          if (full) times.B.push(B);
          else {
            times.I.push(I);
            times.W.push(W);
          }
        });
    const memory = this.waits ? null : this.count();
    const { parameters } = this;
    const input = memory?.inputs.reduce((sum, { bytes }) => sum + bytes, 0) ?? this.inputBytes();
    const costs: StageCosts = {
      F: median(times.F),
      I: median(times.I),
      W: median(times.W),
      B: median(times.B),
      activation: memory?.forward ?? 0,
      retained: Math.min(memory?.forward ?? 0, memory?.inputHalf ?? 0),
      parameters,
      input,
    };
    return { costs, memory };
  }

  private get parameters(): number {
    return this.stage.module.parameters().reduce((sum, each) => sum + each.nbytes, 0);
  }

  private inputBytes(): number {
    return this.stage.sources.reduce(
      (sum, source) => sum + tensorsIn(this.valuesFrom(source)).reduce((all, each) => all + each.nbytes, 0),
      0,
    );
  }

  private valuesFrom(source: number): readonly unknown[] {
    const wanted = this.stage.inputs.filter((input) => input.stage === source);
    return pick(this.around.outputs[source], wanted, source, this.index);
  }

  /** Inputs as messages bring them: memory of their own, leaves where gradients go back. */
  private arrive(hold: Hold = {}): void {
    for (const source of this.stage.sources) {
      const leaves: Tensor[] = [];
      const values = mapTensors(this.valuesFrom(source), (each) => {
        const own = each.detach().clone();
        if (hold.what === 'inputs' && source === hold.source) hold.held?.push(own.detach());
        if (each.requiresGrad) leaves.push(own.requiresGrad_());
        return own;
      }) as readonly unknown[];
      this.stage.setInput(0, source, values, leaves);
    }
  }

  private forward(hold: Hold = {}): void {
    const { stage, around } = this;
    const output = stage.forwardOneChunk(0, around.args);
    if (around.loss !== undefined) {
      const loss = around.loss(output);
      stage.setLoss(0, keep(loss.alias()));
      this.losses.push(keep(loss.detach())); // as the runtime does, until the end of the step
    }
    for (const taker of around.takers) {
      const wanted = this.pipe.info().wiring[taker]?.inputs.filter((input) => input.stage === this.index) ?? [];
      const own = keep(mapTensors(pick(output, wanted, this.index, taker), (each) => each.alias()));
      if (hold.what === 'outputs') hold.held?.push(...tensorsIn(own).map((each) => keep(each.detach())));
      const wantGrads = tensorsIn(own).filter((each) => each.requiresGrad);
      this.sent.set(
        taker,
        wantGrads.map(({ shape, dtype, device }) => ({ shape, dtype, device })),
      );
      stage.setOutgoing(0, taker, wantGrads);
      for (const each of tensorsIn(own)) if (!each.requiresGrad) each.dispose();
      stage.releaseOutgoing(0, taker);
    }
    stage.releaseInputs(0);
  }

  /** Gradients as messages bring them. */
  private gradients(): Tensor[][] {
    return this.around.takers.map((taker) =>
      (this.sent.get(taker) ?? []).map(({ shape, dtype, device }) => ones([...shape], { dtype, device })),
    );
  }

  private backward(full: boolean, arrived: readonly Tensor[][], hold: Hold = {}): void {
    const { stage, around } = this;
    const { held } = hold;
    for (const [i, taker] of around.takers.entries()) {
      const grads = arrived[i] ?? [];
      if (hold.what === 'output gradients') held?.push(...grads.map((each) => keep(each.detach())));
      stage.setOutputGrads(0, taker, grads);
    }
    stage.backwardOneChunk(0, { full, ...(full ? { inputsReady: nothing } : {}) });
    for (const source of stage.sources)
      for (const grad of stage.takeInputGrads(0, source)) {
        if (hold.what === 'input gradients' && hold.source === source && grad !== null) held?.push(keep(grad.detach()));
        grad?.dispose();
      }
  }

  private time(full: boolean): { F: number; B: number; I: number; W: number } {
    this.arrive();
    const times = { F: 0, B: 0, I: 0, W: 0 };
    const start = this.now();
    scope(() => this.forward());
    times.F = this.now() - start;
    const grads = this.gradients();
    const between = this.now();
    scope(() => this.backward(full, grads));
    const end = this.now();
    times[full ? 'B' : 'I'] = end - between;
    if (!full) {
      scope(() => this.stage.backwardWeightOneChunk(0));
      times.W = this.now() - end;
    }
    this.forget();
    return times;
  }

  private forget(): void {
    this.stage.clearRuntimeStates();
    for (const each of this.losses.splice(0)) each.dispose();
  }

  private now(): number {
    if (this.waits) cuda.synchronize();
    return performance.now() / 1000;
  }

  /** What the stage holds for a microbatch: as it is, and beside somebody who holds its inputs, its outputs or gradients too. */
  private count(): StageMemory {
    // Gradients are there from the first step on, and are no part of what one microbatch takes.
    for (const each of this.stage.module.parameters()) if (each.requiresGrad) each.grad ??= zerosLike(each);
    const alone = this.countOnce();
    const of = (what: Hold['what'], source?: number): HeldValues & { readonly saved: number } => {
      const beside = this.countOnce({ what, source, held: [] });
      const bytes = beside.end - alone.end;
      return {
        bytes,
        saved: bytes - (beside.forward - alone.forward),
        kept: bytes - (beside.inputHalf - alone.inputHalf),
      };
    };
    const bare = ({ bytes, kept }: HeldValues): HeldValues => ({ bytes, kept });
    const inputs = this.stage.sources.map(
      (stage): StageInputMemory => ({
        stage,
        ...bare(of('inputs', stage)),
        gradient: bare(of('input gradients', stage)),
      }),
    );
    return { ...alone, inputs, output: { ...of('outputs'), gradient: bare(of('output gradients')) } };
  }

  /** Counts one microbatch in halves, with somebody who holds something of it until the end. */
  private countOnce(hold: Hold = {}): Counts {
    return scope(() => {
      const base = liveBytes();
      this.arrive(hold);
      scope(() => this.forward(hold));
      const forward = liveBytes() - base;
      scope(() => this.backward(false, this.gradients(), hold));
      const inputHalf = liveBytes() - base;
      scope(() => this.stage.backwardWeightOneChunk(0));
      const end = liveBytes() - base;
      this.forget();
      for (const each of hold.held ?? []) each.dispose();
      return { forward, inputHalf, end };
    });
  }
}

/** Somebody who holds something of a microbatch until its end. */
interface Hold {
  readonly what?: undefined | 'inputs' | 'outputs' | 'input gradients' | 'output gradients';
  readonly source?: number | undefined;
  readonly held?: Tensor[];
}

function nothing(): void {}
