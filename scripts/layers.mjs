// @ts-check
/** @file Who may import whom: packages, and the folders inside each. `check-layers.mjs` checks it, CONTRIBUTING shows it. */

/** Packages of ours that a package may import; `lazily` only through `import()` or as types. */
export const packages = {
  schedule: { atOnce: [], lazily: [] },
  torch: { atOnce: [], lazily: [] },
  pipewright: { atOnce: ['schedule', 'torch'], lazily: [] },
  studio: { atOnce: ['schedule'], lazily: [] },
  cli: { atOnce: ['schedule'], lazily: ['torch', 'pipewright', 'studio'] },
};

/** Folders that are bundled when the package is built: what they import travels inside the bundle. */
export const bundled = ['packages/studio/src/page/'];

/** Packages that also run in a browser: nothing of Node in them. */
export const pure = ['schedule'];

/**
 * What each folder of a package's `src` holds, and which folders of the same package it may import. A folder below
 * another one (`nn/modules`) may have a row of its own; else it belongs to the row above. Files directly in `src` are
 * the entries: they may import every folder, and no folder imports them. `torch/native` is C++, by its includes.
 * @type {Record<string, Record<string, { holds: string, imports: string[] }>>}
 */
export const folders = {
  schedule: {
    model: { holds: 'actions, schedules, placements, their text', imports: [] },
    costs: { holds: 'what actions cost in time and memory', imports: ['model'] },
    parallel: {
      holds: 'data parallelism: sharding levels, which stages are unsharded, where collectives are placed',
      imports: ['costs', 'model'],
    },
    validate: {
      holds: 'rules of a valid schedule: order, placement, messages, deadlocks',
      imports: ['parallel', 'costs', 'model'],
    },
    generate: {
      holds: 'builds schedules by name; one file for each in schedules/',
      imports: ['model', 'costs', 'validate'],
    },
    lower: {
      holds: 'adds sends, receives and collectives to a schedule',
      imports: ['simulate', 'parallel', 'validate', 'costs', 'model'],
    },
    simulate: {
      holds: 'simulates a step with costs: times, bubble, memory, critical path, deadlock',
      imports: ['model', 'costs'],
    },
    search: { holds: 'searches for a better order', imports: ['generate', 'simulate', 'costs', 'model'] },
    draw: { holds: 'timelines, tables, SVG, Chrome traces', imports: ['simulate', 'costs', 'model'] },
    recording: {
      holds: 'recorded steps of a run: reading, mean costs, report, trace',
      imports: ['draw', 'simulate', 'costs', 'model'],
    },
    plan: {
      holds: 'plans as data: order, costs, memory, comparison with a run',
      imports: ['recording', 'draw', 'generate', 'simulate', 'parallel', 'costs', 'model'],
    },
    pytorch: {
      holds: "PyTorch's names, text formats and unit-step simulation",
      imports: ['generate', 'lower', 'draw', 'model'],
    },
  },
  torch: {
    base: { holds: 'errors, options, text', imports: [] },
    'setup/base': { holds: 'errors, folders, locks, child processes', imports: ['base'] },
    'setup/libtorch': { holds: 'finds or downloads libtorch and its CUDA libraries', imports: ['setup/base', 'base'] },
    'setup/addon': {
      holds: 'finds the addon that fits, or compiles one',
      imports: ['setup/libtorch', 'setup/base', 'base'],
    },
    setup: {
      holds: 'setup as a whole, loading the addon, doctor',
      imports: ['setup/addon', 'setup/libtorch', 'setup/base', 'base'],
    },
    addon: { holds: 'the loaded addon and what it exports', imports: ['setup', 'base'] },
    tensor: { holds: 'the class Tensor, element types, devices, scopes, generators', imports: ['addon', 'base'] },
    op: { holds: 'calls any operator: overloads, arguments, results', imports: ['tensor', 'addon', 'base'] },
    generated: { holds: 'a function and a method for each operator', imports: ['op', 'tensor', 'addon'] },
    functions: {
      holds: 'functions and methods written by hand: creation, indexing, printing, conversion',
      imports: ['op', 'tensor', 'addon', 'base'],
    },
    files: { holds: 'safetensors, memory-mapped files, writing files safely', imports: ['tensor', 'addon', 'base'] },
    cuda: { holds: 'devices, streams, graphs of CUDA', imports: ['tensor', 'setup', 'addon', 'base'] },
    'distributed/base': {
      holds: 'stores, errors, asynchronous work, native interface of groups',
      imports: ['addon', 'base'],
    },
    'distributed/group': {
      holds: 'process groups, channels, device lanes',
      imports: ['distributed/base', 'op', 'tensor', 'setup', 'addon', 'base'],
    },
    distributed: {
      holds: 'initProcessGroup, environment variables, functions on the default group',
      imports: ['distributed/group', 'distributed/base', 'tensor', 'base'],
    },
    'distributed/threads': {
      holds: 'ranks as threads of this process, number of cores for operators',
      imports: ['distributed', 'distributed/base', 'addon', 'base'],
    },
    autograd: {
      holds: 'backward, hooks, custom functions, activation checkpointing',
      imports: ['distributed/group', 'op', 'tensor', 'addon', 'base'],
    },
    'nn/functional': {
      holds: 'functions of torch.nn.functional',
      imports: ['autograd', 'generated', 'op', 'tensor', 'base'],
    },
    nn: {
      holds: 'Module, Parameter, state dicts, init',
      imports: ['nn/functional', 'autograd', 'functions', 'generated', 'op', 'tensor', 'addon', 'base'],
    },
    'nn/modules': {
      holds: 'the modules of torch.nn',
      imports: ['nn', 'nn/functional', 'distributed', 'distributed/group', 'autograd', 'generated', 'tensor', 'base'],
    },
    optim: { holds: 'the optimizers', imports: ['autograd', 'generated', 'tensor', 'addon', 'base'] },
    'optim/lr-scheduler': { holds: 'learning rate schedules', imports: ['optim', 'tensor', 'base'] },
  },
  'torch/native': {
    core: { holds: "the addon's entry point, environment, operator calls, callbacks", imports: [] },
    tensor: { holds: 'memory of tensors, files, random numbers', imports: ['core'] },
    autograd: { holds: 'backward, hooks, custom functions, saved tensors', imports: ['core'] },
    kernels: {
      holds: "kernels that replace libtorch's: GELU, linear, named random numbers",
      imports: ['autograd', 'core'],
    },
    optim: { holds: 'optimizer steps', imports: ['core'] },
    distributed: { holds: 'stores, groups, channels', imports: ['core'] },
    generated: { holds: 'unboxed calls of the hottest operators', imports: ['core'] },
    cuda: { holds: 'the second addon, built where CUDA headers are installed', imports: ['distributed'] },
  },
  pipewright: {
    base: { holds: 'errors and their codes, checks, trees, message tags, clocks', imports: [] },
    graph: { holds: 'a model as data: nodes, effects of operators, costs, printing', imports: ['base'] },
    execute: { holds: 'compiles and runs a graph', imports: ['graph', 'base'] },
    trace: { holds: 'records the graph of a running model', imports: ['graph', 'base'] },
    pt2: { holds: 'graphs from .pt2 files', imports: ['execute', 'graph', 'base'] },
    split: { holds: 'splits a graph into stages of equal cost', imports: ['execute', 'graph', 'base'] },
    stage: { holds: 'a stage of a pipeline; holds and frees the activations of its microbatches', imports: ['base'] },
    pipe: { holds: 'from a model to stages', imports: ['trace', 'split', 'execute', 'stage', 'graph', 'base'] },
    microbatch: { holds: 'splits a batch, merges outputs', imports: ['base'] },
    status: { holds: 'current position of each rank, for reports of hangs and failures', imports: ['base'] },
    recording: { holds: 'the recorder: actions, waits and their times', imports: ['base'] },
    parallel: { holds: 'device meshes, replicas, sharded parameters', imports: ['base'] },
    runtime: {
      holds: 'executes schedules on stages: actions, messages, losses, gradient norm',
      imports: ['parallel', 'stage', 'microbatch', 'status', 'recording', 'base'],
    },
    plan: {
      holds: 'measures a model, partitions it, searches for a plan and tries it',
      imports: ['parallel', 'runtime', 'recording', 'stage', 'pipe', 'trace', 'split', 'execute', 'graph', 'base'],
    },
    'checkpoint/format': { holds: 'files of a checkpoint: manifest, pieces, names', imports: ['parallel', 'base'] },
    'checkpoint/state': {
      holds: "collects and restores a run's state under the names of the whole model",
      imports: ['checkpoint/format', 'stage', 'base'],
    },
    'checkpoint/writing': {
      holds: 'saving: which rank writes what, the copy in memory, the writer thread',
      imports: ['checkpoint/state', 'checkpoint/format', 'base'],
    },
    'checkpoint/reading': {
      holds: 'loading and verifying',
      imports: ['checkpoint/state', 'checkpoint/format', 'base'],
    },
    'checkpoint/weights': {
      holds: 'weights in the format of Hugging Face',
      imports: ['checkpoint/writing', 'checkpoint/state', 'checkpoint/format', 'stage', 'base'],
    },
    checkpoint: {
      holds: 'saveCheckpoint, loadCheckpoint and what the command line offers',
      imports: [
        'checkpoint/weights',
        'checkpoint/reading',
        'checkpoint/writing',
        'checkpoint/state',
        'checkpoint/format',
        'base',
      ],
    },
    launch: {
      holds: 'starts and watches ranks on this machine (ranks/) and others (machines/)',
      imports: ['status', 'base'],
    },
    recovery: {
      holds: 'a training loop that survives the loss of ranks',
      imports: ['checkpoint/writing', 'launch', 'parallel', 'status', 'base'],
    },
    data: { holds: 'datasets, samplers, the loader and its workers', imports: ['launch', 'base'] },
  },
  studio: {
    server: { holds: 'serves the page, reads the state of a run', imports: [] },
    'page/model': { holds: 'what the page shows, without a browser', imports: [] },
    'page/timeline': { holds: 'the timeline on a canvas', imports: ['page/model'] },
    'page/views': { holds: 'the views of the page', imports: ['page/timeline', 'page/model'] },
    page: { holds: 'the page', imports: ['page/views', 'page/timeline', 'page/model', 'server'] },
  },
  cli: {
    shared: { holds: 'flags, files, output that commands share', imports: [] },
    commands: { holds: 'a folder for each command', imports: ['shared'] },
  },
};

/**
 * Imports that break the table and are known: each names the folder pair. One that is no longer there is an error too.
 * @type {Record<string, [from: string, to: string][]>}
 */
export const known = {};
