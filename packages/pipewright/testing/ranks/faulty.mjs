// @ts-check
/**
 * @file A rank of a short training run in which one rank fails at one slot: by a signal, an error, or a tensor of a wrong
 * shape. Planned, started and judged by tests/faults/faults.mjs.
 */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cat, distributed, optim, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { lossOf, makeBatch, makeStage } from './models.mjs';

/**
 * @typedef {object} Fault
 * @property {'kill' | 'stop' | 'throw' | 'shape'} kind
 * @property {'hook' | 'module' | 'loss'} where who throws
 * @property {number} rank
 * @property {number} step
 * @property {number} slot
 * @property {import('@pipewright/schedule').ScheduleName} schedule
 * @property {string} model
 * @property {number} ranks
 * @property {number} stages
 * @property {readonly number[]} stageToRank
 * @property {number} microbatches
 * @property {number} steps
 * @property {boolean} training false: forwards only
 * @property {string} folder for the files by which ranks and script know of each other
 */

/** @param {Fault} fault */
export function main(fault) {
  const rank = Number(process.env['RANK']);
  meet(fault, rank);
  const group = distributed.initProcessGroup();
  const trap = new Trap(fault, rank);
  const stages = fault.stageToRank.flatMap((of, index) => {
    if (of !== rank) return [];
    const { module, options } = makeStage(fault.model, index, fault.stages);
    trap.setIn(module, index === fault.stages - 1);
    return [new PipelineStage(module, index, fault.stages, options)];
  });
  const lossFn = lossOf(fault.model);
  const runtime = new PipelineRuntime(stages, fault.schedule, {
    microbatches: fault.microbatches,
    lossFn: (output, target) => {
      trap.inLoss();
      return lossFn(output, target);
    },
  });
  runtime.addHook(trap);
  const parameters = stages.flatMap((stage) => stage.module.parameters());
  const optimizer = new optim.SGD(parameters, { lr: 0.01 });
  for (let step = 0; step < fault.steps; step++)
    scope(() => {
      const { x, target } = makeBatch(fault.model, 3 * fault.microbatches, step);
      const inputs = stages.some((stage) => stage.isFirst) ? [x] : [];
      const options = stages.some((stage) => stage.isLast) ? { target } : {};
      optimizer.zeroGrad();
      if (fault.training) runtime.step(...inputs, { ...options, returnOutputs: false });
      else runtime.eval(...inputs, options);
      optimizer.step();
    });
  runtime.dispose();
  return group.rank;
}

/** Ranks begin together: the time limit is for the training, not for a machine that is slow in loading libtorch. @param {Fault} fault @param {number} rank */
function meet({ folder, ranks }, rank) {
  const clock = new Int32Array(new SharedArrayBuffer(4));
  writeFileSync(join(folder, `ready.${rank}`), '');
  for (let other = 0; other < ranks; other++)
    while (!existsSync(join(folder, `ready.${other}`))) Atomics.wait(clock, 0, 0, 10);
}

/** Waits for its slot and springs: a hook of the runtime. */
class Trap {
  /** @param {Fault} fault @param {number} rank */
  constructor(fault, rank) {
    this.fault = fault;
    this.mine = fault.rank === rank;
    this.step = 0;
    /** Whether the slot has come. */
    this.armed = false;
  }

  /** @param {string} _kind @param {number} step */
  beforeStep(_kind, step) {
    this.step = step;
  }

  /** @param {unknown} _action @param {number} slot */
  before(_action, slot) {
    const { fault } = this;
    if (!this.mine || this.armed || this.step !== fault.step || slot !== fault.slot) return;
    this.armed = true;
    if (fault.kind === 'kill') this.signal('SIGKILL');
    else if (fault.kind === 'stop') this.signal('SIGSTOP');
    else if (fault.kind === 'throw' && fault.where === 'hook') this.throw();
  }

  /** Puts the trap into a stage's module. @param {ReturnType<typeof makeStage>['module']} module @param {boolean} isLast */
  setIn(module, isLast) {
    const forward = module.forward.bind(module);
    module.forward = (...inputs) => {
      const { kind, where } = this.fault;
      if (this.armed && kind === 'throw' && where === 'module') this.throw();
      const output = forward(...inputs);
      if (!this.armed || kind !== 'shape') return output;
      this.mine = false;
      this.armed = false;
      this.note();
      // A loss may not mind the width, but it minds the number of rows.
      return isLast ? output.narrow(0, 0, output.shape[0] - 1) : cat([output, output], -1);
    };
  }

  inLoss() {
    if (this.armed && this.fault.where === 'loss') this.throw();
  }

  throw() {
    this.note();
    throw new RangeError('the injected fault');
  }

  /** @param {NodeJS.Signals} name */
  signal(name) {
    this.note();
    process.kill(process.pid, name);
  }

  /** Tells the script when it happened, and which files are in use. */
  note() {
    const { PIPEWRIGHT_STATUS_FILE: statusFile } = process.env;
    writeFileSync(
      join(this.fault.folder, 'fault.json'),
      JSON.stringify({ atMs: Number(process.hrtime.bigint()) / 1e6, statusFile }),
    );
  }
}
