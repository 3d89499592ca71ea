/** @file Custom functions in place of actions: they do the work themselves, and the numbers are those of the runtime. */
import { type Action, buildSchedule } from '@pipewright/schedule';
import { backward, liveTensors, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';
import { batch, expectClose, gradsOf, layers, make, mse, plainGrads } from '../../testing/layers.ts';
import type { PipelineContext } from './options.ts';
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

  test('may look at what it works with and then leave the work to the runtime', () => {
    for (const schedule of ['LoopedBFS', 'InterleavedZeroBubble'] as const) {
      const { runtime, modules } = make(layers(2), schedule);
      const seen: Record<string, number> = {};
      for (const kind of ['F', 'B', 'I'] as const)
        runtime.registerCustomFunction(kind, (_action, context) => {
          const first = kind === 'F' ? context.inputs() : context.backward().outputs;
          const second = kind === 'F' ? context.inputs() : context.backward().outputs;
          expect(second).toEqual(first);
          seen[kind] = (seen[kind] ?? 0) + first.length;
          context.run();
        });
      const data = batch(8);
      const expected = plainGrads(modules, data);
      runtime.step(data.x, { target: data.y });
      expectClose(gradsOf(modules), expected);
      expect((seen.F ?? 0) + (seen.B ?? 0) + (seen.I ?? 0)).toBe(16);
    }
  });

  test('must perform each part of an overlapped action once', () => {
    const message = (custom: Parameters<PipelineRuntime['registerCustomFunction']>[1]): string => {
      const schedule = buildSchedule('DualPipeV', { ranks: 1, microbatches: 4 });
      const { runtime } = make(layers(2), schedule);
      runtime.registerCustomFunction('OVERLAP_F_B', custom);
      const { x, y } = batch(8);
      try {
        runtime.step(x, { target: y });
      } catch (error) {
        runtime.dispose();
        return (error as Error).message;
      }
      return '';
    };
    const all = ({ parts }: Action, context: PipelineContext): void => {
      for (const part of parts ?? []) context.perform(part);
    };
    expect(message(all)).toBe('');
    expect(message(({ parts }, context) => context.perform(parts![0]!))).toMatch(
      /0B0 was not performed; call context\.perform\(part\) for each of action\.parts, or context\.run\(\)$/,
    );
    expect(message(() => undefined)).toMatch(/1F1 was not performed/);
    expect(
      message((action, context) => {
        all(action, context);
        context.perform(action.parts![1]!);
      }),
    ).toMatch(/0B0 comes second; it was performed already$/);
    expect(
      message((action, context) => {
        context.run();
        context.perform(action.parts![0]!);
      }),
    ).toMatch(/1F1 comes second/);
    expect(
      message((action, context) => {
        context.perform(action.parts![0]!);
        context.run();
      }),
    ).toMatch(/context\.run\(\) comes second/);
    expect(message((_action, context) => context.perform(null as never))).toMatch(/null is no part of it/);
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
    const loss = (): Tensor => batch(1).x.sum();
    expect(message((_action, context) => context.setLoss(loss()))).toContain('context.setLoss() is for the last stage');
    expect(
      message((_action, context) => {
        if (!context.stage.isLast) return context.run();
        context.setLoss(loss());
        context.setLoss(loss());
      }),
    ).toContain('the microbatch has a loss already; each has one');
    const promised = async (_action: Action, context: PipelineContext): Promise<void> => {
      await Promise.resolve();
      context.run();
    };
    for (const kind of ['F', 'B'] as const)
      expect(message(promised as never, kind)).toContain(
        'it is asynchronous; what it does must be done when it returns',
      );
    const returning =
      (grad: unknown) =>
      (_action: Action, context: PipelineContext): void =>
        context.setInputGrads(context.backward().inputs.map(() => grad as Tensor));
    expect(message(returning(3), 'B')).toContain(
      'the gradient of an input float64[2, 4] is 3; give a tensor of its shape',
    );
    expect(message(returning(batch(3).x), 'B')).toContain('the gradient of an input float64[2, 4] is float64[3, 4]');
    expect(message((_action, context) => context.setInputGrads([null], 3 as never), 'B')).toContain(
      'the weight half is 3; give a function',
    );
  });
});

describe('a custom function whose result is sent to another rank', () => {
  const cases = ['GPipe', '1F1B'].flatMap((schedule) =>
    [{ replaced: ['F'] }, { replaced: ['B'] }, { replaced: ['F', 'B'] }, { replaced: ['F', 'B'], looks: true }].map(
      (how) => ({ schedule, ...how }),
    ),
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
    cases.forEach(({ schedule, replaced, ...how }, i) => {
      for (const [rank, results] of ranks.entries()) {
        const { grads, want, calls, inFlight } = results[i]!;
        const where = `rank ${rank}, ${schedule}, ${replaced.join(' and ')}, ${JSON.stringify(how)}`;
        expect(calls, where).toEqual({ F: replaced.includes('F') ? 4 : 0, B: replaced.includes('B') ? 4 : 0 });
        expect(grads.flat().length, where).toBe(want.flat().length);
        grads.flat().forEach((value, k) => expect(value, where).toBeCloseTo(want.flat()[k]!, 9));
        expect(inFlight, where).toBe(0);
      }
    });
  });
});
