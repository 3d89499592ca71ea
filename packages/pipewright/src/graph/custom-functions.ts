/**
 * @file Custom autograd functions in graphs: a node holds the name, the function itself is looked up here. A rank that
 * runs a graph traced elsewhere must have registered the function under the same name.
 */
import { FunctionContext, type FunctionOutput, type FunctionType } from '@pipewright/torch';
import { checkArgument, didYouMean } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

type AnyFunction = FunctionType<unknown[], FunctionOutput>;

const functions = new Map<string, AnyFunction>();
const namespace = 'function';

/**
 * Makes a custom autograd function known to graphs; returns the operator that stands for it. Tracing does it by itself;
 * call it on ranks that only run a graph that arrived from elsewhere.
 *
 * @example registerCustomFunction(Square) // 'function::Square'
 */
export function registerCustomFunction<Args extends unknown[], Output extends FunctionOutput>(
  type: FunctionType<Args, Output>,
): string {
  const { forward, backward } = Object(type) as Partial<AnyFunction>;
  const isType = typeof forward === 'function' && typeof backward === 'function';
  const rule = 'a class with static forward and backward, as CustomFunction has them';
  checkArgument('registerCustomFunction', isType, ['the function', type], rule);
  const given = type as unknown as AnyFunction;
  const base = type.name.replace(/\W/g, '_') || 'anonymous';
  let name = base;
  for (let i = 1; functions.has(name) && functions.get(name) !== given; i++) name = `${base}_${i}`;
  functions.set(name, given);
  return `${namespace}::${name}`;
}

/** Runs the function that a node names. */
export function callCustomFunction(op: string, args: unknown[]): FunctionOutput {
  const name = op.slice(namespace.length + 2);
  const found = functions.get(name);
  if (found !== undefined) return FunctionContext.run(found, args);
  throw new PipelineError(
    'UNKNOWN_FUNCTION',
    `the graph calls the custom function '${name}', which this rank does not know${didYouMean(name, functions.keys())}; call registerCustomFunction(${name}) before running it`,
    { function: name },
  );
}

/** Whether an operator is a custom function. */
export function isCustomFunction(op: string): boolean {
  return op.startsWith(`${namespace}::`);
}
