/** @file The error of this package: a message that names the rule, the values and the way out, and a stable `code`. */

/**
 * What goes wrong in a pipeline. `code` is stable; `details` has the values for programs (rank, stage, microbatch, slot).
 *
 * @example try { stage.forwardOneChunk(0, [x]) } catch (e) { if (e instanceof PipelineError) console.log(e.code) }
 */
export class PipelineError extends Error {
  override readonly name: string = 'PipelineError';
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    code: string,
    message: string,
    details: Readonly<Record<string, unknown>> = {},
    options?: { readonly cause?: unknown },
  ) {
    super(message, options);
    this.code = code;
    this.details = details;
  }
}
