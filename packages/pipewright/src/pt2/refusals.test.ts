/** @file What is no sound `.pt2` file is refused, with what was found and what to do. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { liveTensors } from '@pipewright/torch';
import { afterAll, describe, expect, it } from 'vitest';
import { type Entry, readZip, writeZip } from '../../testing/zip-writer.mjs';
import { loadPt2, PipelineError } from '../index.ts';

const testdata = (name: string): string => fileURLToPath(new URL(`../../../../testdata/${name}`, import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'pipewright-pt2-'));
afterAll(() => rmSync(folder, { recursive: true }));
const path = join(folder, 'model.pt2');

type Json = ReturnType<typeof JSON.parse>;

/** The file with its entries changed. */
function changed(change: (entries: Entry[]) => Entry[] | undefined, source = 'exports/tied.pt2'): Buffer {
  const entries = readZip(testdata(source));
  return writeZip(change(entries) ?? entries);
}

/** The file with one JSON document changed. */
function withJson(name: string, change: (json: Json) => void, source?: string): Buffer {
  return changed((entries) => {
    const entry = entries.find((each) => each.name.endsWith(name))!;
    const json: Json = JSON.parse(Buffer.from(entry.bytes).toString('utf8'));
    change(json);
    entry.bytes = Buffer.from(JSON.stringify(json));
  }, source);
}

const program = (change: (json: Json) => void, source?: string): Buffer =>
  withJson('models/model.json', change, source);
const weights = (change: (json: Json) => void): Buffer => withJson('model_weights_config.json', change);
const entry = (name: string, text: string): Buffer =>
  changed((entries) => {
    const found = entries.find((each) => each.name.endsWith(`/${name}`))!;
    found.bytes = Buffer.from(text);
  });
const only = (...names: string[]): Buffer => writeZip(names.map((name) => ({ name, bytes: Buffer.from('x') })));

function refused(bytes: Uint8Array): string {
  writeFileSync(path, bytes);
  const before = liveTensors();
  try {
    loadPt2(path);
  } catch (error) {
    expect(error).toBeInstanceOf(PipelineError);
    expect(liveTensors()).toBe(before);
    return `${(error as PipelineError).code}: ${(error as Error).message.replaceAll(path, 'FILE')}`;
  }
  throw new Error('it was loaded');
}

describe('a file', () => {
  it.each([
    ['text', Buffer.from('hello'), 'PT2_NOT_ZIP: FILE: not a zip file, so not a .pt2 file'],
    ['nothing', Buffer.alloc(0), 'PT2_NOT_ZIP: FILE: not a zip file'],
    [
      'a pickle',
      Buffer.from([0x80, 2, 0x7d]),
      'Python pickle of torch.save, not a .pt2 file; pickles are never opened',
    ],
    ['ExecuTorch', Buffer.from('\0\0\0\0ET12'), 'this is an ExecuTorch program'],
    [
      'half of it',
      readFileSync(testdata('exports/tied.pt2')).subarray(0, 3000),
      'the zip is cut off: its end is missing',
    ],
    ['an empty zip', writeZip([]), 'PT2_NOT_PT2: FILE: the zip is empty'],
    [
      'torch 2.7',
      only('serialized_exported_program.json'),
      'PT2_OLD: FILE: written by torch.export of PyTorch 2.7 or older',
    ],
    ['flat', only('a'), 'entry "a" lies in no folder'],
    ['two folders', only('a/b', 'c/d'), 'entries lie in several folders: "a/b" and "c/d"'],
    ['torch.save', only('m/data.pkl'), 'this is a file of torch.save, a Python pickle, which is never opened'],
    ['TorchScript', only('m/constants.pkl'), 'this is a TorchScript file'],
    ['something else', only('m/x'), 'not a .pt2 file: it has no archive_format'],
    ['another format', entry('archive_format', 'pt3'), 'its archive_format is "pt3", not "pt2"'],
    ['another version', entry('archive_version', '1'), 'PT2_VERSION: FILE: its archive version is "1"'],
    ['big endian', entry('byteorder', 'big'), 'its tensors are stored in "big" byte order'],
    [
      'no program',
      changed((entries) => entries.filter(({ name }) => !name.includes('models/'))),
      'PT2_NO_MODEL: FILE: it holds no program',
    ],
    [
      'torch 2.8',
      changed((entries) => [...entries, { name: 'tied/data/weights/model.pt', bytes: Buffer.from('x') }]),
      'PT2_OLD: FILE: written by PyTorch 2.8',
    ],
    [
      'compressed',
      changed((entries) => entries.map((each, i) => (i === 3 ? { ...each, method: 8 } : each))),
      'is compressed (method 8); a .pt2 file is not: it was packed again by another program',
    ],
    ['encrypted', changed((entries) => entries.map((each) => ({ ...each, flags: 1 }))), 'is encrypted'],
    ['outside', changed((entries) => [...entries, { name: '../graph/x', bytes: Buffer.from('x') }]), 'PT2_UNSAFE_NAME'],
    ['absolute', changed((entries) => [...entries, { name: '/etc/x', bytes: Buffer.from('x') }]), 'PT2_UNSAFE_NAME'],
    ['twice', changed((entries) => [...entries, entries[0] as Entry]), 'is there twice'],
    [
      'overlapping',
      changed((entries) => entries.map((each, i) => (i === 1 ? { ...each, offset: 0 } : each))),
      'overlap',
    ],
    [
      'too long',
      changed((entries) => entries.map((each, i) => (i === 0 ? { ...each, size: 10 ** 9 } : each))),
      'runs into the directory',
    ],
    [
      'a wrong sum',
      changed((entries) => entries.map((each) => (each.name.endsWith('model.json') ? { ...each, crc: 1 } : each))),
      'PT2_DAMAGED: FILE: entry "tied/models/model.json" is damaged: its checksum does not fit',
    ],
  ])('that is %s', (_, bytes, text) => {
    expect(refused(bytes)).toContain(text);
  });

  it('that does not exist, or is a folder', () => {
    expect(() => loadPt2(join(folder, 'none.pt2'))).toThrow(/none.pt2: no such file or folder/);
    expect(() => loadPt2(folder)).toThrow(/: not a regular file/);
    execFileSync('mkfifo', [join(folder, 'pipe.pt2')]);
    expect(() => loadPt2(join(folder, 'pipe.pt2'))).toThrow(/pipe.pt2: not a regular file/);
    expect(() => loadPt2('')).toThrow('loadPt2: expected the path of a .pt2 file');
    expect(() => loadPt2(testdata('exports/tied.pt2'), { modle: 'x' } as never)).toThrow(
      "loadPt2: unknown option 'modle' (did you mean 'model'?); it takes model, verify",
    );
    expect(() => loadPt2(testdata('exports/tied.pt2'), { model: 'other' })).toThrow(
      'there is no model "other"; there are "model"; choose one with the option model',
    );
  });
});

const graphOf = (json: Json): Json => json.graph_module.graph;

describe('a program', () => {
  it.each([
    [
      'of another version',
      program((p) => (p.schema_version.major = 9)),
      'PT2_VERSION: FILE: the program has format 9.20',
    ],
    ['that is no JSON', entry('models/model.json', '{'), 'PT2_JSON: FILE: program is not JSON'],
    [
      'without a field',
      program((p) => delete p.graph_module.signature),
      "program.graph_module: field 'signature' is missing",
    ],
    [
      'with a wrong field',
      program((p) => (graphOf(p).nodes = 7)),
      'program.graph_module.graph.nodes: a list is expected',
    ],
    [
      'with two kinds at once',
      program((p) => (graphOf(p).nodes[0].inputs[0].arg.as_int = 1)),
      'program.graph_module.graph.nodes[0].inputs[0].arg: one of several kinds is expected, got "as_tensor, as_int"',
    ],
    [
      'with an unknown kind',
      program((p) => (graphOf(p).nodes[0].inputs[0].arg = { as_dream: 1 })),
      'unknown kind of argument "as_dream"',
    ],
    [
      'that uses what is not there',
      program((p) => (graphOf(p).nodes[0].inputs[0].arg = { as_tensor: { name: 'ghost' } })),
      'value "ghost" is used before it is made',
    ],
    [
      'that makes a value twice',
      program((p) => graphOf(p).nodes.push(graphOf(p).nodes[0])),
      'value "embedding" is made twice',
    ],
    [
      'with an object',
      program((p) => (graphOf(p).nodes[0].inputs[0].arg = { as_custom_obj: { name: 'o', class_fqn: 'my.Class' } })),
      'object "o" of class "my.Class" is stored as a Python pickle, which is never opened',
    ],
    [
      'with unknown operators, named all at once',
      program((p) => {
        graphOf(p).nodes[0].target = 'torch.ops.mine.op.default';
        graphOf(p).nodes[1].target = 'torch.ops.higher_order.flex_attention';
        graphOf(p).nodes[2].target = 'os.system';
      }),
      /GRAPH_COMPILE: FILE: the graph cannot be run:\n {2}node 'embedding' \(from embed\): .*'mine::op'.*\n {2}node 'mul': operator higher_order::flex_attention is not known.*\n {2}node 'tanh': os.system is a Python function/,
    ],
    [
      'with a custom operator, named with the line of the model and the way out',
      program((p) => {
        const [node] = graphOf(p).nodes;
        node.target = 'torch.ops.mine.op.default';
        const own = 'File "/models/tied.py", line 7, in forward\n    x = mine_op(\u001b[31mids)';
        const torch =
          'File "/lib/site-packages/torch/nn/modules/sparse.py", line 9, in forward\n    return F.embedding(';
        node.metadata.stack_trace = `File "/models/outer.py", line 3, in forward\n    y = inner(x)\n  ${own}\n  ${torch}`;
      }),
      /node 'embedding' \(from embed, at \/models\/tied.py:7: x = mine_op\(\?\[31mids\)\): 'mine::op' is no operator of libtorch: a custom one, registered in Python, which cannot be run here; save program.run_decompositions\(\)/,
    ],
    [
      'with an extension',
      program((p) => (graphOf(p).nodes[0].target = '#a:b')),
      '"#a:b" is not the name of an operator',
    ],
    [
      'that opens files',
      program((p) => (graphOf(p).nodes[0].target = 'torch.ops.aten.from_file.default')),
      'program.graph_module.graph.nodes[0].target: aten::from_file does more than compute, which a file may not',
    ],
    [
      'that talks to other ranks',
      program((p) => (graphOf(p).nodes[0].target = 'torch.ops._c10d_functional.all_reduce.default')),
      '_c10d_functional::all_reduce does more than compute',
    ],
    [
      'with a missing argument',
      program((p) => graphOf(p).nodes[0].inputs.shift()),
      "node 'embedding' (from embed): aten::embedding: argument 'weight' is missing",
    ],
    [
      'with an unknown argument',
      program((p) => (graphOf(p).nodes[0].inputs[0].name = 'wieght')),
      "aten::embedding: unknown argument 'wieght' (did you mean 'weight'?)",
    ],
    [
      'that trains itself',
      program((p) => (p.graph_module.signature.output_specs[0] = { loss_output: { arg: { name: 'linear' } } })),
      'this is a training graph with its backward inside; export the forward only',
    ],
    [
      'whose signature is shorter',
      program((p) => p.graph_module.signature.input_specs.pop()),
      'the graph has 6 inputs, its signature 5',
    ],
    [
      'whose structure has other leaves',
      program(
        (p) =>
          (p.graph_module.module_call_graph[0].signature.out_spec =
            '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]'),
      ),
      'the structure has 0 outputs, the program 1',
    ],
    [
      'whose structure is newer',
      program((p) => (p.graph_module.module_call_graph[0].signature.in_spec = '[2, {}]')),
      'a structure of protocol 1 is expected, got "2"',
    ],
    [
      'with an impossible range',
      program((p) => (p.range_constraints = { s0: { min_val: 5, max_val: 1 } })),
      'the range 5 to 1 is empty',
    ],
  ])('%s', (_, bytes, text) => {
    if (typeof text === 'string') expect(refused(bytes)).toContain(text);
    else expect(refused(bytes)).toMatch(text);
  });
});

describe('weights', () => {
  const row = (json: Json): Json => json.config['frozen'];
  it.each([
    [
      'not there',
      weights((w) => delete w.config['frozen']),
      'PT2_MISSING: FILE: the file has no values for parameter "frozen"',
    ],
    [
      'in no entry',
      weights((w) => (row(w).path_name = 'weight_99')),
      '"frozen" lies in "weight_99", which the file does not have',
    ],
    [
      'elsewhere on disk',
      weights((w) => (row(w).path_name = '../x')),
      '"frozen" lies in "../x", which is no plain name',
    ],
    [
      'pickled',
      weights((w) => (row(w).use_pickle = true)),
      '"frozen" is stored as a Python pickle, which is never opened',
    ],
    ['of an unknown type', weights((w) => (row(w).tensor_meta.dtype = 99)), 'unknown element type 99'],
    [
      'sparse',
      weights((w) => (row(w).tensor_meta.layout = 1)),
      '"frozen" is sparse_coo; only strided tensors are read',
    ],
    [
      'symbolic',
      weights((w) => (row(w).tensor_meta.sizes[0] = { as_expr: { expr_str: 's0' } })),
      'the size of a stored tensor is a number',
    ],
    ['negative', weights((w) => (row(w).tensor_meta.strides[0].as_int = -1)), '-1 is negative'],
    [
      'too large',
      weights((w) => (row(w).tensor_meta.sizes[0].as_int = 7)),
      'needs 28 bytes, but "tied/data/weights/weight_',
    ],
    ['beyond its end', weights((w) => (row(w).tensor_meta.storage_offset.as_int = 1)), 'and offset 1 needs 28 bytes'],
    ['endless', weights((w) => (row(w).tensor_meta.sizes[0].as_int = 2 ** 53 - 1)), 'needs'],
    [
      'empty though it has values',
      changed((entries) =>
        entries.map((each) => (each.name.endsWith('weight_1') ? { ...each, bytes: Buffer.alloc(0) } : each)),
      ),
      'are not in the file: the model was exported without weights',
    ],
  ])('%s', (_, bytes, text) => {
    expect(refused(bytes)).toContain(text);
  });

  it('are checked against their sums when asked', () => {
    const bytes = changed((entries) => {
      const found = entries.find((each) => each.name.endsWith('weight_0'))!;
      Object.assign(found, { crc: 5 });
    });
    writeFileSync(path, bytes);
    loadPt2(path).dispose();
    expect(() => loadPt2(path, { verify: true })).toThrow(/entry ".*weight_0" is damaged/);
  });
});
