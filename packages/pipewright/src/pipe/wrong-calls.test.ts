/** @file Public functions of the graph front end, called with whatever: they work or say what is wrong, with a code. */
import { nn, ones, randn, scope, Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Chain } from '../../testing/pipes.ts';
import * as api from '../index.ts';
import { buildStage, PipelineRuntime, pipeline, pipeSplit, traceModule } from '../index.ts';

const called = [
  'GraphModule GraphBuilder registerCustomFunction evaluate parseExpression isReference mapReferences eachReference',
  'inputsOf mapNodeReferences usersOf placeholdersOf outputOf formatGraph formatMeta annotateSplitPoints PipeSequential',
  'tensorBytes valueMemory DetachExecutor PipeExecutor nullCoalesceAdd stageBackward findLossOutput',
  'insertSymbolicBackward TrivialLossWrapper drawPipe formatBytes formatFlops buildStage pipeline describePipe',
  'describePt2 loadPt2 cutAtModules cutBalanced withoutMarks measureCosts stageModuleName splitGraph traceModule',
  'validateGraph checkGraph pipeSplit',
].flatMap((line) => line.split(' '));

/** A module whose forward takes anything. */
class Anything extends nn.Module {
  override forward(): Tensor {
    return ones([2]);
  }
}

const values: readonly unknown[] = [
  ...[undefined, null, 0, -1, Number.NaN, 'x', 10n, [], {}, () => 1, new Map(), [1, 2], new Anything(), ones([2, 2])],
  { nodes: [] },
  { nodes: [{ kind: 'output', name: 'o', value: null }] },
  { graph: { nodes: [] }, state: new Map() },
];

test.each([...called, ...Object.keys(api.tree).map((name) => `tree.${name}`)])('%s', async (name) => {
  const found: unknown = name.startsWith('tree.') ? Reflect.get(api.tree, name.slice(5)) : Reflect.get(api, name);
  const run = found as (...args: unknown[]) => unknown;
  expect(typeof run).toBe('function');
  const isClass = Function.prototype.toString.call(run).startsWith('class');
  const bare = new Set<string>();
  for (const a of values)
    for (const b of values)
      for (const c of [undefined, null, 3, {}])
        try {
          await scope(() => (isClass ? (Reflect.construct(run, [a, b, c]) as unknown) : run(a, b, c)));
        } catch (error) {
          if (typeof Reflect.get(Object(error) as object, 'code') !== 'string') bare.add(String(error));
        }
  expect([...bare]).toEqual([]);
});

describe('what scripts for PyTorch write', () => {
  const x = randn(4, 4);

  test('pipeline(model, [x]) takes the example arguments, and options after them', () => {
    expect(pipeline(new Chain(), [x]).numStages).toBe(1);
    expect(pipeline(new Chain(), [x], { stages: 2 }).numStages).toBe(2);
    expect(() => pipeline(new Chain(), [x], { stagse: 2 } as never)).toThrow(/unknown option 'stagse'/);
    expect(() => pipeline(new Chain(), x as never)).toThrow(
      /second argument is a Tensor; give .* mbArgs: \[x\] }, or \[x\]/,
    );
    expect(() => pipeline(new Chain())).toThrow(/mbArgs is undefined; give the example arguments/);
  });

  test('options of another kind are refused, not passed over', () => {
    const refused: readonly [unknown, RegExp][] = [
      [{ splitSpec: new Map([['layers.1', 'end']]) }, /splitSpec is a Map; give module names/],
      [{ splitSpec: null }, /splitSpec is null/],
      [{ splitSpec: { layer: 'end' } }, /no module 'layer' \(did you mean 'layers'\?\); names .*: layers, layers\.0/],
      [{ mbKwargs: new Map() }, /pipeline: mbKwargs is a Map/],
      [{ mbKwargs: null }, /pipeline: mbKwargs is null/],
      [{ recompute: 'stage 1' }, /recompute is 'stage 1'; give true or false for each stage/],
      [{ recompute: [1] }, /recompute is an array of 1/],
      [new Map([['stages', 2]]), /pipeline: the options are a Map/],
      [new Set(['stages']), /pipeline: the options are a Set/],
    ];
    for (const [more, message] of refused) expect(() => pipeline(new Chain(), [x], more as never)).toThrow(message);
    expect(() => api.annotateSplitPoints(new Chain(), new Map([['layers.1', 'end']]) as never)).toThrow(/is a Map/);
    const { graph } = traceModule(new Chain(), [x]);
    expect(() => api.cutAtModules(graph, new Map() as never)).toThrow(/splitSpec is a Map/);
    expect(() => traceModule(new Chain(), [x], { kwargs: new Map() as never })).toThrow(/kwargs is a Map/);
  });

  test('buildStage(0, device) works, on a pipe and for modules that were sent', () => {
    const pipe = pipeline(new Chain(), [x], { stages: 2 });
    expect(pipe.buildStage(0, 'cpu').stageIndex).toBe(0);
    expect(pipe.buildStage(0, 'meta').module.parameters()[0]?.device).toBe('meta');
    expect(buildStage(pipe.getStageModule(1), 1, pipe.info(), 'cpu').stageIndex).toBe(1);
    expect(() => pipe.buildStage(0, 3 as never)).toThrow(/the last argument is 3; give a device/);
    expect(() => buildStage(undefined as never, 0, pipe.info())).toThrow(
      /give the module of a stage: pipe.getStageModule\(0\)/,
    );
    expect(() => buildStage(pipe.getStageModule(0), 0, undefined as never)).toThrow(
      /give what is known of the pipe: pipe.info\(\)/,
    );
  });
});

describe('buildStage(pipe.getStageModule(i), i, pipe.info())', () => {
  class Named extends nn.Module {
    first = new nn.Linear(4, 4);
    last = new nn.Linear(4, 4);
    forward(x: Tensor, { y, scale }: { y: Tensor; scale: Tensor }): Tensor {
      const z = this.first.forward(x).add(y);
      pipeSplit();
      return this.last.forward(z).mul(scale); // an input of the model that only the last stage takes
    }
  }

  test('runs a model with named inputs of which a later stage takes one', () => {
    const model = new Named();
    const [x, y, scale] = [randn(4, 4), randn(4, 4), randn(4, 4)];
    const target = randn(4, 4);
    const want = scope(() => {
      const loss = model.forward(x, { y, scale }).sub(target).square().mean();
      loss.backward();
      const grads = model.parameters().map((each) => each.grad?.toArray());
      for (const each of model.parameters()) each.grad = null;
      return grads;
    });
    const pipe = pipeline(model, { mbArgs: [x], mbKwargs: { y, scale } });
    const stages = [0, 1].map((i) => buildStage(pipe.getStageModule(i), i, pipe.info()));
    using runtime = new PipelineRuntime(stages, 'Interleaved1F1B', {
      microbatches: 1,
      lossFn: (out: Tensor, wanted: Tensor) => out.sub(wanted).square().mean(),
    } as never);
    scope(() => (runtime.step as (...given: unknown[]) => unknown).call(runtime, x, { target, kwargs: { y, scale } }));
    expect(model.parameters().map((each) => each.grad?.toArray())).toEqual(want);
  });

  test('a module on its own does what the model does: its stages called one after the other', () => {
    const model = new Named();
    const [x, y, scale] = [randn(4, 4), randn(4, 4), randn(4, 4)];
    const pipe = pipeline(traceModule(model, [x], { kwargs: { y, scale } }));
    scope(() => {
      const sent = pipe.getStageModule(0).forward(x, { y, scale }) as Tensor[];
      const inputs = pipe.info().wiring[1]?.inputs ?? [];
      const out = pipe.getStageModule(1).forward(...inputs.map(({ output }) => sent[output as number])) as Tensor;
      expect(out.toArray()).toEqual(model.forward(x, { y, scale }).toArray());
    });
  });
});
