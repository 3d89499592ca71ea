/** @file One stage of a pipe, run action by action with what messages would bring, and what it holds then, counted byte by byte. */
import type { HeldValues, StageInputMemory, StageMemory } from '@pipewright/schedule';
import { cuda, keep, liveBytes, ones, scope, type Tensor, zerosLike } from '@pipewright/torch';
import { mapTensors, tensorsIn } from '../base/tree.ts';
import type { Pipe } from '../pipe/pipe.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import { pick } from '../stage/wiring.ts';

/** What a stage is run with. */
export interface Surroundings {
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

/** One stage, run alone: every method does a part of what the runtime does for a microbatch. */
export class StageRun {
  private readonly pipe: Pipe;
  private readonly index: number;
  private readonly around: Surroundings;
  private readonly stage: PipelineStage;
  /** Whether it is on a GPU, which has to be waited for. */
  readonly waits: boolean;
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
      this.arrive(0);
      const output = this.stage.forwardOneChunk(0, this.around.args);
      const kept = mapTensors(output, (each) => {
        const own = each.detach();
        return each.requiresGrad ? own.requiresGrad_() : own;
      });
      this.stage.forget(0);
      return kept;
    });
  }

  /** Bytes of its parameters. */
  get parameters(): number {
    return this.stage.module.parameters().reduce((sum, each) => sum + each.nbytes, 0);
  }

  /** Bytes of what arrives for a microbatch. */
  get inputBytes(): number {
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
  arrive(m: number, hold: Hold = {}): void {
    for (const source of this.stage.sources) {
      const leaves: Tensor[] = [];
      const values = mapTensors(this.valuesFrom(source), (each) => {
        const own = each.detach().clone();
        if (hold.what === 'inputs' && source === hold.source) hold.held?.push(own.detach());
        if (each.requiresGrad) leaves.push(own.requiresGrad_());
        return own;
      }) as readonly unknown[];
      this.stage.setInput(m, source, values, leaves);
    }
  }

  /** The forward, and the loss on the last stage. */
  forward(m: number, hold: Hold = {}): void {
    const { stage, around } = this;
    const output = stage.forwardOneChunk(m, around.args);
    if (around.loss !== undefined) {
      const loss = around.loss(output);
      stage.setLoss(m, keep(loss.alias()));
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
      stage.setOutgoing(m, taker, wantGrads);
      for (const each of tensorsIn(own)) if (!each.requiresGrad) each.dispose();
      stage.releaseOutgoing(m, taker);
    }
    stage.releaseInputs(m);
  }

  /** Gradients as messages bring them, once the forward has told what they are for. */
  gradients(): Tensor[][] {
    return this.around.takers.map((taker) =>
      (this.sent.get(taker) ?? []).map(({ shape, dtype, device }) => ones([...shape], { dtype, device })),
    );
  }

  /** The backward, in full or its input half; returns the time at which the gradients of the inputs were there. */
  backward(m: number, { full, grads, hold = {} }: BackwardRun): number {
    const { stage, around } = this;
    const { held } = hold;
    for (const [i, taker] of around.takers.entries()) {
      const arrived = grads[i] ?? [];
      if (hold.what === 'output gradients') held?.push(...arrived.map((each) => keep(each.detach())));
      stage.setOutputGrads(m, taker, arrived);
    }
    let ready = Number.NaN;
    const inputsReady = (): void => {
      ready = this.now();
    };
    // On a GPU gradients leave at the end.
    stage.backwardOneChunk(m, { full, ...(full && !this.waits ? { inputsReady } : {}) });
    for (const source of stage.sources)
      for (const grad of stage.takeInputGrads(m, source)) {
        if (hold.what === 'input gradients' && hold.source === source && grad !== null) held?.push(keep(grad.detach()));
        grad?.dispose();
      }
    return ready;
  }

  /** The weight half. */
  weights(m: number): void {
    this.stage.backwardWeightOneChunk(m);
  }

  /** Drops all that is left of microbatches. */
  forget(): void {
    this.stage.clearRuntimeStates();
    for (const each of this.losses.splice(0)) each.dispose();
  }

  /** Seconds, after all that was started is done. */
  now(): number {
    if (this.waits) cuda.synchronize();
    return performance.now() / 1000;
  }

  /** What the stage holds for a microbatch: as it is, and beside somebody who holds its inputs, its outputs or gradients too. */
  count(): StageMemory {
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
      this.arrive(0, hold);
      scope(() => this.forward(0, hold));
      const forward = liveBytes() - base;
      scope(() => this.backward(0, { full: false, grads: this.gradients(), hold }));
      const inputHalf = liveBytes() - base;
      scope(() => this.weights(0));
      const end = liveBytes() - base;
      this.forget();
      for (const each of hold.held ?? []) each.dispose();
      return { forward, inputHalf, end };
    });
  }
}

/** How a backward is run. */
interface BackwardRun {
  readonly full: boolean;
  /** The gradients that arrived, by taker. */
  readonly grads: readonly Tensor[][];
  readonly hold?: Hold;
}

/** Somebody who holds something of a microbatch until its end. */
interface Hold {
  readonly what?: undefined | 'inputs' | 'outputs' | 'input gradients' | 'output gradients';
  readonly source?: number | undefined;
  readonly held?: Tensor[];
}
