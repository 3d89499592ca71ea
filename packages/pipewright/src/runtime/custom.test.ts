/** @file Custom functions in place of actions: they do the work themselves, and the numbers are those of the runtime. */
import { buildSchedule } from '@pipewright/schedule';
import { backward, liveTensors, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';
import { batch, expectClose, gradsOf, layers, make, mse, plainGrads } from '../../testing/layers.ts';
import type { PipelineRuntime } from './runtime.ts';

/** Forwards by hand: inputs from the context, the module, outputs to the context. */
function forwardByHand(runtime: PipelineRuntime): void {
  runtime.registerCustomFunction('F', (_action, context) => {
    const forward = context.stage.module.forward as (...inputs: unknown[]) => Tensor;
    context.setOutput(forward.apply(context.stage.module, [...context.inputs()]));
  });
}

/** Full backwards by hand. */
function backwardByHand(runtime: PipelineRuntime): void {
  runtime.registerCustomFunction('B', (_action, context) => {
    const { outputs, outputGrads, inputs } = context.backward();
    backward(outputs, { gradTensors: outputGrads });
    context.setInputGrads(inputs.map((input) => input.grad));
  });
}

describe('a custom function', () => {
  test.each(['Interleaved1F1B', 'LoopedBFS'] as const)('may do forwards and backwards itself, under %s', (schedule) => {
    const { runtime, modules } = make(layers(3), schedule);
    forwardByHand(runtime);
    backwardByHand(runtime);
    const data = batch(8);
    const expected = plainGrads(modules, data);
    const losses: Tensor[] = [];
    const output = runtime.step(data.x, { target: data.y, losses });
    expectClose(gradsOf(modules), expected);
    expect(losses.length).toBe(4);
    expect(output?.shape).toEqual(data.y.shape);
    expect(runtime.eval(data.x)?.toArray()).toEqual(output?.toArray());
    expect(runtime.stages.map((stage) => stage.inFlight)).toEqual([0, 0, 0]);
  });

  test('may do both halves of a backward itself', () => {
    const { runtime, modules } = make(layers(2), 'InterleavedZeroBubble');
    const order: string[] = [];
    runtime.registerCustomFunction('I', (action, context) => {
      const { outputs, outputGrads, inputs } = context.backward();
      backward(outputs, { gradTensors: outputGrads });
      context.setInputGrads(
        inputs.map((input) => input.grad),
        () => void order.push(`W${action.stage}`),
      );
    });
    const data = batch(8);
    const expected = plainGrads(modules, data);
    runtime.step(data.x, { target: data.y });
    expectClose(gradsOf(modules), expected);
    expect(order.length).toBeGreaterThan(0);
    const later: number[] = [];
    runtime.registerCustomFunction('W', (_action, { microbatch }) => void later.push(microbatch));
    runtime.step(data.x, { target: data.y });
    expect(later.length).toBe(order.length);
    expect(runtime.stages.map((stage) => stage.inFlight)).toEqual([0, 0]);
  });

  test('may give the loss, and losses that it adds stay', () => {
    const { runtime, modules } = make(layers(2), 'Interleaved1F1B', {
      lossFn: () => {
        throw new Error('not asked for');
      },
    });
    const data = batch(8);
    const expected = plainGrads(modules, data);
    runtime.registerCustomFunction('F', (_action, context) => {
      const forward = context.stage.module.forward as (...inputs: unknown[]) => Tensor;
      const output = forward.apply(context.stage.module, [...context.inputs()]);
      if (context.stage.isLast) context.setLoss(mse(output, context.target?.[context.microbatch] as Tensor));
      context.setOutput(output);
    });
    const losses: Tensor[] = [];
    runtime.step(data.x, { target: data.y, losses });
    expectClose(gradsOf(modules), expected);
    expect(losses.length).toBe(4);
    runtime.registerCustomFunction('F', (_action, context) => {
      const forward = context.stage.module.forward as (...inputs: unknown[]) => Tensor;
      const output = forward.apply(context.stage.module, [...context.inputs()]);
      const own = mse(output, output);
      if (context.stage.isLast) {
        context.setLoss(own);
        context.losses?.push(own.detach());
      }
      context.setOutput(output);
    });
    runtime.step(data.x, { target: data.y, losses });
    expect(losses.map((loss) => loss.item())).toEqual(new Array(8).fill(0));
  });

  test('performs the parts of an overlapped action in its own order', () => {
    const schedule = buildSchedule('DualPipeV', { ranks: 1, microbatches: 4 });
    const { runtime, modules } = make(layers(2), schedule);
    const data = batch(8);
    const expected = plainGrads(modules, data);
    let pairs = 0;
    runtime.registerCustomFunction('OVERLAP_F_B', (action, context) => {
      pairs++;
      for (const part of [...(action.parts ?? [])].reverse()) context.perform(part);
    });
    runtime.step(data.x, { target: data.y });
    expect(pairs).toBeGreaterThan(0);
    expectClose(gradsOf(modules), expected);
  });

  test('that forgets its work, does it twice, or asks for what is not there is named', () => {
    const message = (
      custom: Parameters<PipelineRuntime['registerCustomFunction']>[1],
      kind: 'F' | 'B' = 'F',
    ): string => {
      const { runtime } = make(layers(2), 'LoopedBFS');
      runtime.registerCustomFunction(kind, custom);
      const { x, y } = batch(8);
      const live = liveTensors();
      try {
        runtime.step(x, { target: y });
      } catch (error) {
        runtime.dispose();
        expect(liveTensors()).toBe(live);
        return (error as Error).message;
      }
      return '';
    };
    expect(message(() => undefined)).toMatchInlineSnapshot(
      `"rank 0, slot 0 (0F0): the custom function for F, at 0F0: it called neither context.run() nor context.setOutput(); one of them must be called"`,
    );
    expect(message(() => undefined, 'B')).toContain('neither context.run() nor context.setInputGrads()');
    expect(
      message((_action, context) => {
        context.run();
        context.run();
      }),
    ).toContain('context.run() comes second; the action was done already');
    expect(message((_action, context) => void context.backward())).toContain('context.backward() is for B and I');
    expect(message((_action, context) => context.setInputGrads([null, null]), 'B')).toContain(
      '2 gradients for 1 inputs',
    );
    expect(message((_action, context) => context.setLoss(3 as unknown as Tensor))).toContain(
      'setLoss was given 3; give a tensor of one element',
    );
  });
});

describe('a custom function whose result is sent to another rank', () => {
  const cases = ['GPipe', '1F1B'].flatMap((schedule) =>
    [['F'], ['B'], ['F', 'B']].map((replaced) => ({ schedule, replaced })),
  );
  const program = new URL('../../testing/ranks/custom.mjs', import.meta.url);
  const kinds = {
    threads: () => casesOnThreads(program, 2, cases),
    processes: () => casesOnProcesses(program, 2, cases),
  };

  test.each(['threads', 'processes'] as const)('gives the gradients of plain training, on two %s', async (kind) => {
    const ranks = (await kinds[kind]()) as {
      grads: number[][];
      want: number[][];
      calls: { F: number; B: number };
      inFlight: number;
    }[][];
    expect(ranks.length).toBe(2);
    cases.forEach(({ schedule, replaced }, i) => {
      for (const [rank, results] of ranks.entries()) {
        const { grads, want, calls, inFlight } = results[i]!;
        const where = `rank ${rank}, ${schedule}, ${replaced.join(' and ')}`;
        expect(calls, where).toEqual({ F: replaced.includes('F') ? 4 : 0, B: replaced.includes('B') ? 4 : 0 });
        expect(grads.flat().length, where).toBe(want.flat().length);
        grads.flat().forEach((value, k) => expect(value, where).toBeCloseTo(want.flat()[k]!, 9));
        expect(inFlight, where).toBe(0);
      }
    });
  });
});
