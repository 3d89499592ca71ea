/** @file The error of this package: a message that names the rule, the values and the way out, and a stable `code`. */

/** What went wrong, by a name that stays. */
export const pipelineErrorCodes = [
  'ASYNC_DATASET',
  'BAD_ARGUMENT',
  'BAD_CHECKPOINT',
  'BAD_CHUNK_SPEC',
  'BAD_DATASET',
  'BAD_INPUT',
  'BAD_LOSS',
  'BAD_MASK',
  'BAD_OPTION',
  'BAD_SAMPLE',
  'BAD_SCHEDULE',
  'BAD_STAGE',
  'BAD_STATE',
  'BAD_WIRING',
  'BATCH_TOO_SMALL',
  'BROKEN',
  'CANNOT_SAVE',
  'CHECKPOINT_STATE',
  'COLLECTIVE_FAILED',
  'CUSTOM_FUNCTION',
  'EMPTY_BATCH',
  'FIXED_MODE',
  'GRADIENT_MISMATCH',
  'GRAPH',
  'GRAPH_COMPILE',
  'GRAPH_INPUT',
  'GRAPH_PART',
  'GRAPH_RUN',
  'GRAPH_STATE',
  'GRAPH_TRACE',
  'INTERNAL',
  'LATE',
  'LEFT_EARLY',
  'LENGTHS_DIFFER',
  'LOSS_FAILED',
  'LOSS_SPEC',
  'MEASURE',
  'MEMORY_LIMIT',
  'MESSAGES_CHANGED',
  'MISSING_INPUT',
  'MISSING_PACKAGE',
  'NAME_CLASH',
  'NOTHING_RECORDED',
  'NOT_EQUAL',
  'NOT_FINITE',
  'NO_AGREEMENT',
  'NO_BACKWARD',
  'NO_BATCH',
  'NO_CHECKPOINT',
  'NO_CHUNKS',
  'NO_GRAD',
  'NO_PLAN',
  'NO_PORT',
  'NO_SCRIPT',
  'OUT_OF_ORDER',
  'PEER_LOST',
  'PT2_BYTE_ORDER',
  'PT2_DAMAGED',
  'PT2_FILE',
  'PT2_JSON',
  'PT2_MISSING',
  'PT2_NOT_PT2',
  'PT2_NOT_ZIP',
  'PT2_NO_MODEL',
  'PT2_OLD',
  'PT2_TOO_LARGE',
  'PT2_UNSAFE_NAME',
  'PT2_VERSION',
  'RANK_FAILED',
  'REFUSED',
  'SAMPLE_FAILED',
  'SCALAR',
  'SHAPES_DIFFER',
  'SHAPE_MISMATCH',
  'SHARED_CHANGE',
  'SHORT_BATCH',
  'STAGE_FAILED',
  'STATE_LOST',
  'STEP_FAILED',
  'STEP_REFUSED',
  'STOPPED',
  'TERMINATED',
  'TIE_MISMATCH',
  'TIMED_OUT',
  'TOO_MANY_STAGES',
  'TRACE_ASYNC',
  'TRACE_CHANGES_FIELD',
  'TRACE_CHANGES_PARAMETER',
  'TRACE_DISPOSED',
  'TRACE_INFERENCE',
  'TRACE_INPUT',
  'TRACE_NESTED',
  'TRACE_OUTPUT',
  'TRACE_READS_VALUE',
  'TRACE_SIZES',
  'TRACE_UNTRACEABLE',
  'TREE_DEPTH',
  'TREE_KEY',
  'TREE_MISMATCH',
  'UNKNOWN_FUNCTION',
  'UNKNOWN_MODULE',
  'UNKNOWN_OP',
  'UNKNOWN_OPTION',
  'UNKNOWN_SIZE',
  'WORKER_LOST',
] as const;

/** One of `pipelineErrorCodes`. */
export type PipelineErrorCode = (typeof pipelineErrorCodes)[number];

/** One of ours, or the code of an error of another package or program that is passed on. */
export type PassedErrorCode = PipelineErrorCode | (string & {});

/**
 * What goes wrong in a pipeline. `code` is stable; `details` has the values for programs (rank, stage, microbatch, slot).
 *
 * @example try { stage.forwardOneChunk(0, [x]) } catch (e) { if (e instanceof PipelineError) console.log(e.code) }
 */
export class PipelineError extends Error {
  override readonly name: string = 'PipelineError';
  readonly code: PassedErrorCode;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    code: PipelineErrorCode,
    message: string,
    details: Readonly<Record<string, unknown>> = {},
    options?: { readonly cause?: unknown },
  ) {
    super(message, options);
    this.code = code;
    this.details = details;
  }
}
