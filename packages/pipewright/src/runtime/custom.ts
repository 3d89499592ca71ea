/** @file Custom functions: they replace what the runtime does for a kind of action. */
import { type Action, formatAction } from '@pipewright/schedule';
import { scope, Tensor } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError, type PipelineErrorCode } from '../base/errors.ts';
import { giveInputGrads, takeOutputGrads } from './actions/backward.ts';
import { giveOutputs, takeInputs } from './actions/forward.ts';
import { keepLoss, lossGradOf, takeOutput } from './actions/loss.ts';
import type { AnyRuntime, CustomFunction, PipelineContext } from './options.ts';
import { perform } from './row/perform.ts';
import type { Executor, PlannedAction } from './row/planned-action.ts';
import type { StepState } from './row/step-state.ts';

/** The method that a custom function for a kind has to call, unless it calls `run`. */
const duties: Readonly<Record<string, string>> = { F: 'setOutput', B: 'setInputGrads', I: 'setInputGrads' };

/** An executor that calls a custom function; `builtIn` is what `context.run()` does. */
export function customExecutor(runtime: AnyRuntime, custom: CustomFunction, builtIn: Executor | undefined): Executor {
  return (planned, step) => {
    const context = new ActionContext(runtime, planned, { step, builtIn });
    const returned: unknown = custom(planned.action, context);
    context.end(returned);
  };
}

/** What a custom function is called with. */
class ActionContext implements PipelineContext {
  readonly runtime: AnyRuntime;
  readonly args: PipelineContext['args'];
  readonly kwargs: PipelineContext['kwargs'];
  readonly target: PipelineContext['target'];
  readonly losses: PipelineContext['losses'];
  readonly stage: PipelineContext['stage'];
  readonly microbatch: number;
  readonly training: boolean;
  private readonly planned: PlannedAction;
  private readonly step: StepState;
  private readonly builtIn: Executor | undefined;
  private done = false;
  /** The parts of an overlapped action that were performed. */
  private readonly performed: PlannedAction[] = [];

  constructor(
    runtime: AnyRuntime,
    planned: PlannedAction,
    { step, builtIn }: { step: StepState; builtIn: Executor | undefined },
  ) {
    this.runtime = runtime;
    this.planned = planned;
    this.step = step;
    this.builtIn = builtIn;
    this.args = step.batch.args;
    this.kwargs = step.batch.kwargs;
    this.target = step.batch.target;
    this.losses = step.options.losses;
    this.stage = planned.links.stage;
    this.microbatch = planned.microbatch;
    this.training = step.training;
  }

  run(): void {
    this.settle('run');
    this.builtIn?.(this.planned, this.step);
  }

  inputs<Inputs extends readonly unknown[] = readonly Tensor[]>(): Inputs {
    this.only('inputs', ['F']);
    const { args, kwargs, microbatch: m } = this;
    takeInputs(this.planned, this.step);
    this.step.taken = this.planned;
    return this.stage.inputsOf(m, args[m], kwargs[m]) as readonly unknown[] as Inputs;
  }

  setOutput(output: unknown): void {
    this.only('setOutput', ['F']);
    this.settle('setOutput');
    scope(() => {
      takeInputs(this.planned, this.step);
      this.stage.endForward(this.microbatch);
      if (this.stage.isLast) takeOutput(this.stage, this.microbatch, output, this.step);
      giveOutputs(this.planned, output, this.step);
    });
  }

  setLoss(loss: Tensor): void {
    this.only('setLoss', ['F']);
    if (!(loss instanceof Tensor) || loss.numel() !== 1)
      throw this.wrong('BAD_LOSS', `setLoss was given ${show(loss)}; give a tensor of one element`);
    if (!this.stage.isLast) throw this.wrong('BAD_LOSS', 'context.setLoss() is for the last stage');
    if (this.step.losses[this.microbatch] !== undefined)
      throw this.wrong('BAD_LOSS', 'the microbatch has a loss already; each has one');
    scope(() => keepLoss(this.stage, this.microbatch, loss, this.step));
  }

  backward(): ReturnType<PipelineContext['backward']> {
    this.only('backward', ['B', 'I']);
    takeOutputGrads(this.planned, this.step);
    this.step.taken = this.planned;
    return this.stage.backwardStart(this.microbatch, lossGradOf(this.stage, this.microbatch, this.step));
  }

  setInputGrads(grads: readonly (Tensor | null)[], weights?: () => void): void {
    this.only('setInputGrads', ['B', 'I']);
    this.settle('setInputGrads');
    if (weights !== undefined && typeof (weights as unknown) !== 'function')
      throw this.wrong('BAD_ARGUMENT', `the weight half is ${show(weights)}; give a function`);
    this.backward();
    const later = this.planned.kind === 'I' ? (weights ?? ((): void => undefined)) : undefined;
    scope(() => {
      this.stage.endBackward(this.microbatch, grads, later);
      giveInputGrads(this.planned);
    });
  }

  perform(part: Action): void {
    this.only('perform', ['OVERLAP_F_B']);
    const planned = this.planned.parts.find(({ action }) => action === part);
    if (planned === undefined)
      throw this.wrong(
        'BAD_INPUT',
        `${(part as Action | null) === null || typeof part !== 'object' ? show(part) : formatAction(part)} is no part of it; its parts are in action.parts`,
      );
    if (this.done || this.performed.includes(planned))
      throw this.wrong('CUSTOM_FUNCTION', `${formatAction(part)} comes second; it was performed already`);
    this.performed.push(planned);
    perform(planned, this.step);
  }

  /** After the function: checks that the action was performed, and not asynchronously. */
  end(returned: unknown): void {
    const { kind, parts } = this.planned;
    if (returned instanceof Promise) {
      returned.catch(() => undefined); // the error below reports it
      throw this.wrong('CUSTOM_FUNCTION', 'it is asynchronous; what it does must be done when it returns');
    }
    const left = this.done ? undefined : parts.find((part) => !this.performed.includes(part));
    if (kind === 'OVERLAP_F_B' && left !== undefined)
      throw this.wrong(
        'CUSTOM_FUNCTION',
        `${formatAction(left.action)} was not performed; call context.perform(part) for each of action.parts, or context.run()`,
      );
    const duty = duties[kind];
    if (kind === 'W' && !this.done) this.stage.skipWeights(this.microbatch);
    if (duty !== undefined && !this.done)
      throw this.wrong(
        'CUSTOM_FUNCTION',
        `it called neither context.run() nor context.${duty}(); one of them must be called`,
      );
  }

  private settle(name: string): void {
    if (this.done || this.performed.length > 0)
      throw this.wrong('CUSTOM_FUNCTION', `context.${name}() comes second; the action was done already`);
    this.done = true;
  }

  private only(name: string, kinds: readonly string[]): void {
    if (!kinds.includes(this.planned.kind))
      throw this.wrong('CUSTOM_FUNCTION', `context.${name}() is for ${kinds.join(' and ')}`);
  }

  private wrong(code: PipelineErrorCode, text: string): PipelineError {
    const { kind, action } = this.planned;
    return new PipelineError(code, `the custom function for ${kind}, at ${formatAction(action)}: ${text}`);
  }
}
