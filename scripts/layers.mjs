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
      holds: 'data parallelism: levels, what is resident, where collectives stand',
      imports: ['costs', 'model'],
    },
    validate: { holds: 'whether a schedule can run and is right', imports: ['parallel', 'costs', 'model'] },
    generate: { holds: 'the schedules by name, each in schedules/', imports: ['model', 'costs', 'validate'] },
    lower: {
      holds: 'sends, receives, gathers put into a schedule',
      imports: ['simulate', 'parallel', 'validate', 'costs', 'model'],
    },
    simulate: { holds: 'running a schedule against costs', imports: ['model', 'costs'] },
    search: { holds: 'finding a better order', imports: ['generate', 'simulate', 'costs', 'model'] },
    draw: { holds: 'timelines, tables, SVG, Chrome traces', imports: ['simulate', 'costs', 'model'] },
    recording: { holds: 'what a real run did, read and reported', imports: ['draw', 'simulate', 'costs', 'model'] },
    plan: {
      holds: 'plans as data: their order, costs, memory, and their comparison with a run',
      imports: ['recording', 'draw', 'generate', 'simulate', 'costs', 'model'],
    },
    pytorch: { holds: "PyTorch's names and forms", imports: ['generate', 'lower', 'draw', 'model'] },
  },
  torch: {
    base: { holds: 'errors, options, text', imports: [] },
    'setup/base': { holds: 'errors, folders, locks, programs of the machine', imports: ['base'] },
    'setup/libtorch': { holds: 'finds libtorch, fetches it and what a GPU needs', imports: ['setup/base', 'base'] },
    'setup/addon': { holds: 'which addon fits, building one', imports: ['setup/libtorch', 'setup/base', 'base'] },
    setup: {
      holds: 'the whole set-up, loading of the addon, the doctor',
      imports: ['setup/addon', 'setup/libtorch', 'setup/base', 'base'],
    },
    addon: { holds: 'the loaded addon and what it exports', imports: ['setup', 'base'] },
    tensor: { holds: 'the class Tensor, element types, devices, scopes, generators', imports: ['addon', 'base'] },
    op: { holds: 'any operator called: overloads, arguments, results', imports: ['tensor', 'addon', 'base'] },
    generated: { holds: 'a function and a method for each operator', imports: ['op', 'tensor', 'addon'] },
    functions: {
      holds: 'functions and methods written by hand: creation, indexing, printing, conversion',
      imports: ['op', 'tensor', 'addon', 'base'],
    },
    files: { holds: 'safetensors, mapped files', imports: ['tensor', 'addon', 'base'] },
    cuda: { holds: 'devices, streams, graphs of CUDA', imports: ['tensor', 'setup', 'addon', 'base'] },
    'distributed/base': {
      holds: 'stores, errors, work under way, what the addon offers to groups',
      imports: ['addon', 'base'],
    },
    'distributed/group': {
      holds: 'process groups, channels, device lanes',
      imports: ['distributed/base', 'op', 'tensor', 'setup', 'addon', 'base'],
    },
    distributed: {
      holds: 'the group of a run: its environment, its start, functions on it',
      imports: ['distributed/group', 'distributed/base', 'tensor', 'base'],
    },
    'distributed/threads': {
      holds: 'ranks as threads of this process, threads for operators',
      imports: ['distributed', 'distributed/base', 'addon', 'base'],
    },
    autograd: {
      holds: 'backward, hooks, custom functions, checkpoints',
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
    core: { holds: "the addon's entry, its environment, calls of operators, callbacks", imports: [] },
    tensor: { holds: 'memory of tensors, files, random numbers', imports: ['core'] },
    autograd: { holds: 'backward, hooks, custom functions, saved tensors', imports: ['core'] },
    kernels: { holds: "operators in the place of libtorch's", imports: ['autograd', 'core'] },
    optim: { holds: 'steps of optimizers', imports: ['core'] },
    distributed: { holds: 'stores, groups, channels', imports: ['core'] },
    generated: { holds: 'unboxed calls of the hottest operators', imports: ['core'] },
    cuda: { holds: 'the second addon, where CUDA headers are', imports: ['distributed'] },
  },
  pipewright: {
    base: { holds: 'errors, checks, trees, clocks', imports: [] },
    graph: { holds: 'a model as data', imports: ['base'] },
    execute: { holds: 'running a graph', imports: ['graph', 'base'] },
    trace: { holds: 'a graph from a running model', imports: ['graph', 'base'] },
    pt2: { holds: 'graphs from .pt2 files', imports: ['execute', 'graph', 'base'] },
    split: { holds: 'cutting a graph into stages', imports: ['execute', 'graph', 'base'] },
    stage: { holds: 'a stage of a pipeline', imports: ['base'] },
    pipe: { holds: 'from a model to stages', imports: ['trace', 'split', 'execute', 'stage', 'graph', 'base'] },
    microbatch: { holds: 'cutting a batch, joining results', imports: ['base'] },
    status: { holds: 'where each rank is', imports: ['base'] },
    recording: { holds: 'what happened and when', imports: ['base'] },
    parallel: { holds: 'meshes, and replicas beside the pipeline', imports: ['base'] },
    runtime: {
      holds: 'runs schedules on stages',
      imports: ['parallel', 'stage', 'microbatch', 'status', 'recording', 'base'],
    },
    plan: {
      holds: 'measuring, partitions, the search for a plan, its trial',
      imports: ['runtime', 'recording', 'stage', 'pipe', 'trace', 'split', 'execute', 'graph', 'base'],
    },
    'checkpoint/format': { holds: 'what lies in a checkpoint: manifest, pieces, names', imports: ['parallel', 'base'] },
    'checkpoint/state': {
      holds: "a run's state under the names of the whole model, collected and put back",
      imports: ['checkpoint/format', 'stage', 'base'],
    },
    'checkpoint/writing': {
      holds: 'saving: who writes what, the copy in memory, the thread that writes',
      imports: ['checkpoint/state', 'checkpoint/format', 'base'],
    },
    'checkpoint/reading': {
      holds: 'loading and verifying',
      imports: ['checkpoint/state', 'checkpoint/format', 'base'],
    },
    'checkpoint/weights': {
      holds: 'weights as Hugging Face has them',
      imports: ['checkpoint/writing', 'checkpoint/state', 'checkpoint/format', 'stage', 'base'],
    },
    checkpoint: {
      holds: 'runs saved and loaded',
      imports: [
        'checkpoint/weights',
        'checkpoint/reading',
        'checkpoint/writing',
        'checkpoint/state',
        'checkpoint/format',
        'base',
      ],
    },
    launch: { holds: 'starts ranks on this machine and others', imports: ['status', 'base'] },
    recovery: {
      holds: 'a training loop that survives the loss of ranks',
      imports: ['checkpoint/writing', 'launch', 'parallel', 'status', 'base'],
    },
    data: { holds: 'datasets, samplers, the loader and its workers', imports: ['launch', 'base'] },
  },
  studio: {
    server: { holds: 'serves the page, follows a run', imports: [] },
    'page/model': { holds: 'what the page shows, without a browser', imports: [] },
    'page/timeline': { holds: 'the timeline on a canvas', imports: ['page/model'] },
    'page/views': { holds: 'parts of the page', imports: ['page/timeline', 'page/model'] },
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
