/** @file One run of a module under the recorder, at given sizes. */
import { getRngState, isInferenceModeEnabled, nn, noGrad, Scope, setRngState, Tensor } from '@pipewright/torch';
import { withRecorder } from '@pipewright/torch/internal';
import { callForward } from '../base/call-forward.ts';
import { PipelineError } from '../base/errors.ts';
import { flatten } from '../base/tree.ts';
import type { GraphArgument, TensorMeta, ValueMeta } from '../graph/graph.ts';
import { onPipeSplit } from '../graph/mark.ts';
import type { FlatNode } from '../graph/regions.ts';
import type { ModuleBorders } from '../graph/split-point.ts';
import { withOwnConstants } from './constants.ts';
import { ModuleFields, refuseFieldChanges } from './fields.ts';
import { type ExampleInputs, treeArgument } from './inputs.ts';
import { type ModuleWatcher, watchModules } from './modules.ts';
import { type RecordedAttribute, TraceRecorder } from './recorder.ts';
import type { Sizes } from './sizes.ts';
import type { ModuleState } from './state.ts';
import { encodePlain, metaOf } from './values.ts';

/** What a run was recorded as. */
export interface Recording {
  readonly inputs: readonly { readonly name: string; readonly meta: ValueMeta }[];
  readonly attributes: readonly RecordedAttribute[];
  readonly nodes: readonly FlatNode[];
  readonly output: GraphArgument;
  /** The names that modules were called under. */
  readonly called: ReadonlySet<string>;
}

/** What is traced, and how. */
export interface TraceSubject {
  readonly module: nn.Module;
  readonly state: ModuleState;
  readonly inputs: ExampleInputs;
  /** Whether it is run on the meta device, without computing. */
  readonly onMeta: boolean;
  /** Whether stages end before and after a module that is called under a name. */
  readonly bordersAt: (module: nn.Module, path: string) => ModuleBorders | undefined;
}

let isUnderWay = false;

/** Runs the module once and records it. The module's fields and buffers and the random state are as before afterwards. */
export function recordRun(subject: TraceSubject, sizes: Sizes): Recording {
  if (isUnderWay)
    throw new PipelineError('TRACE_NESTED', 'trace: a model is being traced already; call trace outside of forward');
  if (isInferenceModeEnabled())
    throw new PipelineError('TRACE_INFERENCE', 'trace: inference mode is on; trace outside of inferenceMode');
  const { module, inputs, state, onMeta, bordersAt } = subject;
  const scope = new Scope();
  const recorder = new TraceRecorder(state, scope, onMeta);
  const called = new Set<string>();
  const watcher: ModuleWatcher = {
    enter(part, path) {
      called.add(path);
      recorder.modules.push(path, part.constructor.name);
      if (bordersAt(part, path)?.before === true) recorder.mark();
    },
    leave(part, path) {
      if (bordersAt(part, path)?.after === true) recorder.mark();
      recorder.modules.pop();
    },
  };
  const placeholders: { name: string; meta: ValueMeta }[] = [];
  const args = inputs.call((input) => {
    const made = inputs.resized(input, sizes, onMeta);
    placeholders.push({
      name: recorder.addInput(made, input.name, input.device),
      meta: { ...(metaOf(made) as TensorMeta), device: input.device },
    });
    return made;
  });
  const undo = onMeta ? () => undefined : rememberState(state);
  const fields = new ModuleFields(module);
  isUnderWay = true;
  try {
    const forward = (): unknown => callForward(module, args);
    const marked = (): unknown => onPipeSplit(() => recorder.mark(), forward);
    const result = watchModules(module, watcher, () => withRecorder(recorder, marked));
    const output = withRecorder(recorder, () => encodeOutput(result, recorder));
    refuseFieldChanges(fields, { recorder, state, inputs: placeholders.map(({ name }) => name) });
    const { attributes } = recorder;
    return { inputs: placeholders, attributes, nodes: withOwnConstants(recorder.nodes, attributes), output, called };
  } finally {
    isUnderWay = false;
    for (const tensor of fields.restore())
      if (onMeta && tensor.isMeta && recorder.nodesOf(tensor).length > 0) tensor.dispose();
    undo();
    scope.close();
  }
}

function encodeOutput(result: unknown, recorder: TraceRecorder): GraphArgument {
  if (result instanceof Promise)
    throw new PipelineError('TRACE_ASYNC', 'trace: forward returned a promise; a traced model computes synchronously');
  const { leaves, spec } = flatten(result);
  const encoded = leaves.map((leaf): GraphArgument => {
    if (leaf instanceof Tensor) return recorder.referenceTo(leaf);
    const plain = encodePlain(leaf ?? null);
    if (plain !== undefined) return plain;
    throw new PipelineError(
      'TRACE_OUTPUT',
      `trace: forward returned a ${typeof leaf === 'function' ? 'function' : (leaf as object).constructor.name}; return tensors, and arrays and plain objects of them`,
    );
  });
  return treeArgument(spec, encoded);
}

/** Remembers what a run on real tensors may change: buffers and the random state; calling the result restores them. */
function rememberState(state: ModuleState): () => void {
  const buffers: { tensor: Tensor; copy: Tensor }[] = [];
  const versions: { name: string; tensor: Tensor; version: number }[] = [];
  for (const [tensor, [name = '']] of state.tensors())
    if (tensor instanceof nn.Buffer) buffers.push({ tensor, copy: noGrad(() => tensor.clone()) });
    else versions.push({ name, tensor, version: tensor.version });
  const random = getRngState();
  return () => {
    setRngState(random);
    noGrad(() => {
      for (const { tensor, copy } of buffers) tensor.copy_(copy);
    });
    const changed = versions.find(({ tensor, version }) => tensor.version !== version);
    if (changed !== undefined)
      throw new PipelineError(
        'TRACE_CHANGES_PARAMETER',
        `trace: forward changes the parameter ${changed.name} in place, and this model cannot be traced without computing; change parameters outside of forward`,
      );
  };
}
