import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import * as library from './index.ts';

const page = readFileSync(new URL('../../../docs/pytorch-names.md', import.meta.url), 'utf8');
const index = readFileSync(new URL('./index.ts', import.meta.url), 'utf8');

/** The identifiers of PyTorch's schedules, its constants, passes, executors and visualizer. */
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
`
  .trim()
  .split(/\s+/);

/** Rows of all tables: PyTorch's names, and what does their job here. */
const rows = page
  .split('\n')
  .filter((line) => line.startsWith('| `'))
  .map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')))
  .map(([torch, here]) => ({ torch: quoted(torch!), here: here!, tokens: quoted(here!) }));

function quoted(cell: string): string[] {
  return [...cell.matchAll(/`([^`]+)`/g)].map((match) => match[1]!);
}

/** Exported values and types. */
const exported = new Set(
  [...index.matchAll(/export (?:type )?\{([^}]*)\}/g)].flatMap((match) =>
    match[1]!.split(',').map((name) => name.trim().replace(/^.* as /, '')),
  ),
);

/** Whether an exported value has a member, on itself, on its instances, or as a field of a schedule. */
function hasMember(name: string, member: string): boolean {
  const value = (library as Record<string, unknown>)[name];
  if (value === library.Schedule && member in library.Schedule.from({ order: [] })) return true;
  return (
    (Object(value) as object)[member as never] !== undefined ||
    member in Object((value as { prototype?: object })?.prototype)
  );
}

describe('docs/pytorch-names.md', () => {
  test('has every name once', () => {
    const found = rows.flatMap(({ torch }) => torch);
    expect([...found].sort()).toEqual([...new Set(found)].sort());
    expect(wanted.filter((name) => !found.includes(name))).toEqual([]);
  });

  test.each(rows.flatMap(({ torch, tokens }) => tokens.map((token) => [token, torch.join(', ')])))(
    '%s is there, for %s',
    (token) => {
      if (token.includes('#')) {
        const [path, symbol] = token.split('#') as [string, string];
        const file = new URL(`./${path}`, import.meta.url);
        expect(existsSync(file), path).toBe(true);
        expect(readFileSync(file, 'utf8')).toMatch(new RegExp(`\\b${symbol}\\b`));
        return;
      }
      const [, name, member, argument] = /^(\w+)(?:\.(\w+))?(?:\('(\w+)'\))?$/.exec(token) ?? [];
      expect([...exported]).toContain(name);
      if (member !== undefined) expect(hasMember(name!, member), token).toBe(true);
      if (argument !== undefined) expect(library.findSchedule(argument).name).toBeTruthy();
    },
  );

  test('a row without a name of ours says who does the job', () => {
    for (const { here, tokens } of rows) if (tokens.length === 0) expect(here).toBe('runtime');
  });
});
