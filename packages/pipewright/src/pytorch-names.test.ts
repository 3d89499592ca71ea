/** @file docs/reference/pytorch-names.md names every identifier of PyTorch's pipelining once, and nothing of ours that is not there. */
import { existsSync, readFileSync } from 'node:fs';
import * as schedule from '@pipewright/schedule';
import * as torch from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import * as pipewright from './index.ts';

const packages = new URL('../../', import.meta.url);
const page = readFileSync(new URL('../../../docs/reference/pytorch-names.md', import.meta.url), 'utf8');

/** The identifiers of PyTorch's pipelining: schedules, stages, microbatches, backward, front end. */
const wanted = `
_Action _ComputationType _PipelineSchedule PipelineScheduleSingle PipelineScheduleMulti
_PipelineScheduleRuntime _ScheduleForwardOnly ScheduleGPipe Schedule1F1B ScheduleLoopedBFS
ScheduleInterleaved1F1B ScheduleInterleavedZeroBubble ScheduleZBVZeroBubble ScheduleDualPipeV _PipelineContext
_CustomFunctionProtocol __call__ REDUCE_GRAD Schedule IR PP __init__ __repr__ __str__ from_str is_compute_op
_get_profiler_function_name _format_pipeline_order _dump_chrometrace _dump_csv _load_csv get_schedule_class
_get_pipeline_order _calculate_single_rank_operations _get_1f1b_rank_ops get_rank_warmup_ops
forward_stage_index backward_stage_index _add_bubbles_to_actions need_bubble add_action add_overlap_f_b
add_weight_action_if_pending increment_backward_counts _merge_bw _add_unshard_reshard next_stage_indices
_unshard _reshard _add_reduce_grad _requires_reduce_grad _leaf_action _add_send_recv _has_comms _get_comms
_ready_to_schedule _validate_schedule _process_action _validate_and_set_stage_mapping
_prepare_schedule_with_comms _simulate_comms_compute _simulate add_to_schedule generate_rank_to_stage_mapping
step eval _step_microbatches _initialize_stage _initialize_stages _check_inputs check_type_and_len
_split_inputs _merge_outputs merge_chunks _compute_loss _maybe_compute_loss _maybe_get_loss _update_losses
_batch_p2p _sorted_batch_p2p _wait_batch_p2p _perform_action _assert_unsharded register_custom_function
_check_torch_compile_compatibility FORWARD BACKWARD_INPUT BACKWARD_WEIGHT FULL_BACKWARD OVERLAP_F_B UNSHARD
RESHARD SEND_F RECV_F SEND_B RECV_B _get_warmup_ops generate_stage_to_rank_mapping pipeline_order
pipeline_order_with_comms backward_counter fwd_recv_ops bwd_recv_ops unshard_ops unsharded_stages
get_schedule_ops add_schedule_op_spacing visualize_schedule OpKey _ComputationTypeVisual
action_type_to_color_mapping
arg_mbs kwarg_mbs target_mbs loss_kwargs finalize_gradients WAIT_SEND_F WAIT_SEND_B WAIT_REDUCE_GRAD
max_outstanding_sends max_active_stages unshard_lookahead analyze_pipeline_activation_liveness
PipelineActivationLiveness PipelineStageInfo
_PipelineStageBase PipelineStage _PipelineStage _RecvInfo RecvInfo _RootArgPlaceholder Stage Pipeline Buffer
build_stage has_backward is_first is_last _check_chunk_id _configure_outputs_meta get_outputs_meta
_shape_inference _prepare_forward_infra _prepare_backward_infra _create_act_recv_info create_recv_tensor
_create_act_send_info find_dst_rank _create_grad_recv_info _create_grad_send_info map_recv_to_send
_get_output_node get_stage_index_of_submod _move_submod_to_device _make_tensor_from_meta _get_recv_ops
get_fwd_recv_ops get_fwd_send_ops get_bwd_recv_ops get_bwd_send_ops _get_init_p2p_neighbors_ops
_map_tensor_from_recv_info get_recv_tensor _retrieve_recv_activations _retrieve_recv_grads set_local_fwd_input
get_local_bwd_output set_local_bwd_input _normalize_model_output_as_tuple forward_maybe_with_nosync
forward_one_chunk backward_maybe_with_nosync perform_backward backward_one_chunk backward_weight_one_chunk
_validate_fwd_input _validate_fwd_outputs clear_runtime_states scale_grads perform_reduce_grad stage_backward
flatten_args map_debug_info
Pipe PipeInfo PipeSequential PipeSplitWrapper SplitPoint MultiUseParameterConfig LossWrapper
TrivialLossWrapper MyModelWrapper DetachExecutor DummyModule _LinearNodeList _NodeReference GraphModule Node
pipeline pipe_split _pipe_split annotate_split_points _split_before_forward _split_after_forward
from_sequential forward from_tracing _trace_with_export _from_traced split_callback split_module
_outline_submodules move_param_to_callee delete_user_reference _recursive_getattr_with_parent
_number_and_count_forward_stages get_submod_name get_stage_module info print_readable throw run call_module
call_function detach_tensors dont_traverse_size _find_loss_output _find_loss_from_output_and_spec
_insert_stage_symbolic_backward add_to_live_nodes assign_or_accumulate_grad _null_coalesce_accumulate
_modify_graph_op_device _direct_serialization_reduce _direct_serialization_deserialize to_graph ref_to_node
torch torch.distributed ProcessGroup torch.distributed.fsdp FSDPModule
torch.distributed._composable.replicate_with_fsdp replicate ReplicateModule torch.nn.parallel
DistributedDataParallel DDP torch.nn Parameter torch.nn.modules.loss _Loss torch.profiler record_function
torch._dynamo OptimizedModule JIT torch.export ExportedProgram torch.export.unflatten torch.fx torch.fx.node
torch.fx.passes.split_module map_aggregate Argument torch._subclasses.fake_tensor FakeTensor
torch.utils._pytree tree_map_only GradientEdge ._backward ._debug ._unflatten ._utils .microbatch .stage
API Accumulate Update Automatic Differentiation Backward Backwarded Forwarded Base Caching Save Coalesce
Compute Detaches Detaching Error Exception RuntimeError NotImplementedError Expected Expecting False True None
Optional Union GC GPU Index Input Output List Tuple Unify Map Log Meta Move Object Prepare Initialize Receive
Retrieve Sending Recurse Sanity Scale Tensor Tensors Create Deprecated TODO Non Number Unknown Args Key Keyword
Filter Find Attempted Attempting Failed alias
stage_backward_input stage_backward_weight _get_grad_fn_or_grad_acc construct_reverse_graph reverse_closure
get_param_groups TensorChunkSpec _Replicate _CustomReducer _LossReducer sum_reducer DEFAULT_CHUNK_DIM
split_args_kwargs_into_chunks _shard_dict_of_args _split_tensor _split_block_mask flatten_args_detach
validate_tensor_metadata validate_tensors_metadata PipeliningShapeError friendly_debug_info InputInfo
dw_builder dw_runner backward_state args_recv_info act_send_info grad_recv_info grad_send_info
PP_SUBMOD_PREFIX aten_pipe_split_alias MultiUseParamSpec replicated_params
`
  .trim()
  .split(/\s+/);

/** Rows of all tables: PyTorch's names, and what does their job here. */
const rows = page
  .split('\n')
  .filter((line) => line.startsWith('| `'))
  .map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')))
  .map(([theirs, here]) => ({
    theirs: quoted(theirs as string),
    here: here as string,
    tokens: quoted(here as string),
  }));

function quoted(cell: string): string[] {
  return [...cell.matchAll(/`([^`]+)`/g)].map((match) => match[1] as string);
}

/** Exported values. */
const values: Record<string, unknown> = { ...torch, ...schedule, ...pipewright };

/** Exported types, with the text of those that are interfaces; by name. */
const types = new Map<string, string>();
for (const name of ['schedule', 'torch', 'pipewright']) collectTypes(new URL(`${name}/src/index.ts`, packages));

/** Follows the re-exports of an index. */
function collectTypes(file: URL): void {
  const text = readFileSync(file, 'utf8');
  for (const [, declared] of text.matchAll(/^export (?:interface|type|class|abstract class) (\w+)/gm))
    types.set(declared as string, bodyOf(text, declared as string));
  for (const [, all, list, path] of text.matchAll(/export (?:type )?(?:(\*)|\{([^}]*)\}) from '(\.[^']+)'/g)) {
    const target = new URL(path as string, file);
    if (all === '*') collectTypes(target);
    const names = (list ?? '').split(',').map((entry) =>
      entry
        .trim()
        .replace(/^type /, '')
        .replace(/^.* as /, ''),
    );
    const source = readFileSync(target, 'utf8');
    for (const name of names.filter((entry) => entry !== '')) types.set(name, bodyOf(source, name));
  }
}

/** The body of an interface or class; empty for other types. */
function bodyOf(text: string, name: string): string {
  const start = text.search(new RegExp(`^export (?:abstract )?(?:interface|class) ${name}\\b`, 'm'));
  return start < 0 ? '' : text.slice(start, text.indexOf('\n}', start));
}

/** Whether something exported has a member: on itself, on its instances, in a schedule, or in its type. */
function hasMember(name: string, member: string): boolean {
  const value = values[name];
  if (value === schedule.Schedule && member in schedule.Schedule.from({ order: [] })) return true;
  const inValue =
    (Object(value) as object)[member as never] !== undefined ||
    member in (Object((value as { prototype?: object } | undefined)?.prototype) as object);
  return inValue || new RegExp(`^  (?:readonly |get |static )?${member}\\b`, 'm').test(types.get(name) ?? '');
}

function fileOf(path: string): URL {
  const [, name = 'schedule', rest = path] = /^(pipewright|torch)\/(.*)$/.exec(path) ?? [];
  return new URL(`${name}/src/${rest}`, packages);
}

describe('docs/reference/pytorch-names.md', () => {
  test('has every name once', () => {
    const found = rows.flatMap(({ theirs }) => theirs);
    expect([...found].sort()).toEqual([...new Set(found)].sort());
    expect(wanted.filter((name) => !found.includes(name))).toEqual([]);
    expect(found.filter((name) => !wanted.includes(name))).toEqual([]);
  });

  test.each(rows.flatMap(({ theirs, tokens }) => tokens.map((token) => [token, theirs.join(', ')])))(
    '%s is there, for %s',
    (token) => {
      if (token.includes('#')) {
        const [path, symbol] = token.split('#') as [string, string];
        const file = fileOf(path);
        expect(existsSync(file), path).toBe(true);
        expect(readFileSync(file, 'utf8')).toMatch(new RegExp(`\\b${symbol}\\b`));
        return;
      }
      const [, name = '', member, argument] = /^(\w+)(?:\.(\w+))?(?:\('(\w+)'\))?$/.exec(token) ?? [];
      expect(name in values || types.has(name), token).toBe(true);
      if (member !== undefined) expect(hasMember(name, member), token).toBe(true);
      if (argument !== undefined) expect(schedule.findSchedule(argument).name).toBeTruthy();
    },
  );

  test('a row without a name of ours says why', () => {
    for (const { here, tokens } of rows) if (tokens.length === 0) expect(here).toMatch(/^none: \w/);
  });
});
