/** @file What nodes cost, measured: the graph is run operator by operator, and each is timed. */
import { cuda, FunctionContext, noGrad, scope, Tensor } from '@pipewright/torch';
import { type BoundOp, callGiven, type Recorder, withRecorder } from '@pipewright/torch/internal';
import { checkArgument, checkCount, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { GraphModule } from '../execute/graph-module.ts';
import { isCustomFunction } from '../graph/custom-functions.ts';
import { type GraphNode, needNodes, pipeSplitOp } from '../graph/graph.ts';
import type { GraphProgram } from '../graph/graph-program.ts';
import { flattenRegions } from '../graph/regions.ts';

/**
 * Seconds of the forward of every operator of a graph, by node name: the least of several runs.
 *
 * @example pipeline(program, { stages: 4, balance: { seconds: measureCosts(program, [x]) } })
 */
export function measureCosts(
  program: GraphProgram,
  args: readonly unknown[],
  options: { readonly rounds?: number | undefined } = {},
): Map<string, number> {
  checkOptions('measureCosts', options, ['rounds']);
  const rounds = checkCount('measureCosts', 'rounds', options.rounds ?? 3);
  const isProgram = typeof program === 'object' && program !== null && program.state instanceof Map;
  checkArgument('measureCosts', isProgram, ['the program', program], 'what traceModule or loadPt2 returns');
  checkArgument('measureCosts', Array.isArray(args), ['the arguments', args], 'an array: measureCosts(program, [x])');
  needNodes('measureCosts', program.graph);
  const names = flattenRegions(program.graph).nodes.flatMap(({ node }) => (isTimed(node) ? [node.name] : []));
  const module = new GraphModule(program.graph, program.state);
  const waits = [...program.state.values(), ...args].some((value) => value instanceof Tensor && value.isCuda);
  const best = new Map<string, number>();
  for (let round = 0; round < rounds; round++) {
    const seconds = scope(() => timeOperators(() => noGrad(() => module.forward(...args)), waits));
    if (seconds.length !== names.length)
      throw new PipelineError(
        'MEASURE',
        `measureCosts: the graph has ${names.length} operators, but ${seconds.length} ran: it has branches or loops; leave the costs to be estimated`,
      );
    names.forEach((name, i) => best.set(name, Math.min(best.get(name) ?? Number.POSITIVE_INFINITY, seconds[i]!)));
  }
  return best;
}

function isTimed(node: GraphNode): boolean {
  if (node.kind !== 'call' || node.op === pipeSplitOp) return false;
  if (node.op === 'aten::sym_size.int' || node.op === 'aten::_assert_tensor_metadata') return false;
  return node.op.startsWith('aten::') || isCustomFunction(node.op);
}

/** Seconds of each operator that runs, in order. */
function timeOperators(body: () => unknown, waits: boolean): number[] {
  const seconds: number[] = [];
  const timed = <T>(run: () => T): T => {
    if (waits) cuda.synchronize();
    const start = performance.now();
    const result = withRecorder(null, run);
    if (waits) cuda.synchronize();
    seconds.push((performance.now() - start) / 1000);
    return result;
  };
  const recorder: Recorder = {
    operator: (op: BoundOp, given) => timed(() => callGiven(op, given)),
    customFunction: (type, given) => timed(() => FunctionContext.run(type, given)),
    checkpoint: (run) => run(),
    alias: (tensor) => withRecorder(null, () => tensor.alias()),
    deviceOf: (tensor) => withRecorder(null, () => tensor.device),
    beforeAccess: () => undefined,
  };
  withRecorder(recorder, body);
  return seconds;
}
