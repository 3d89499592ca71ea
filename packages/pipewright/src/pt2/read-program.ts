/** @file A `.pt2` program: its graph, how it is called, and which tensors it reads. */
import type { AttributeNode, DimRange, Graph, GraphArgument, ValueMeta } from '../graph/graph.ts';
import type { JsonCursor } from './json-cursor.ts';
import { pt2Error, shown } from './pt2-error.ts';
import { customObject, floatArgument, integerArgument } from './read-arguments.ts';
import { GraphReader, inputName } from './read-graph.ts';
import { countLeaves, fillTree, type NamedTuples, readTreeSpec, type TreeSpec } from './tree-spec.ts';

/** A tensor that the program reads. */
export interface ProgramTensor {
  readonly target: string;
  readonly role: AttributeNode['role'];
  readonly persistent: boolean;
  /** Which of the file's two tables has it. */
  readonly table: 'weights' | 'constants';
}

/** What a program says. */
export interface Pt2Program {
  readonly graph: Graph;
  readonly tensors: readonly ProgramTensor[];
  /** Version of the format, `8.17`. */
  readonly schemaVersion: string;
  /** Version of PyTorch that wrote it. */
  readonly torchVersion: string;
  /** `TRAINING` for plain exports, `ATEN` for decomposed ones. */
  readonly dialects: readonly string[];
}

/** Reads a program. */
export function readProgram(program: JsonCursor): Pt2Program {
  const version = program.get('schema_version');
  const [major, minor] = [version.get('major').int(), version.get('minor').int()];
  if (major !== 8)
    throw pt2Error(
      'VERSION',
      program.file,
      `the program has format ${major}.${minor}, this reader knows 8.x; save it again with PyTorch 2.9 or newer`,
    );
  const module = program.get('graph_module');
  const body = new ProgramReader(module, readRanges(program.get('range_constraints')));
  return {
    ...body.read(),
    schemaVersion: `${major}.${minor}`,
    torchVersion: program.find('torch_version')?.text() ?? '2.4 or older',
    dialects:
      program
        .find('verifiers')
        ?.list()
        .map((item) => item.text()) ?? [],
  };
}

function readRanges(ranges: JsonCursor): [string, DimRange][] {
  const bound = (value: JsonCursor | undefined): number | null => {
    if (value === undefined) return null;
    const exact = value.bigInt();
    const number = Number(exact);
    return Number.isSafeInteger(number) ? number : null; // 2^63 - 1 stands for no bound
  };
  return ranges.entries().map(([symbol, range]) => {
    const [min, max] = [bound(range.find('min_val')), bound(range.find('max_val'))];
    if (symbol === '' || symbol === '__proto__') throw range.wrong('a range has a symbol');
    if (min !== null && max !== null && min > max) throw range.wrong(`the range ${min} to ${max} is empty`);
    return [symbol, { min, max }];
  });
}

class ProgramReader {
  private readonly module: JsonCursor;
  private readonly ranges: readonly [string, DimRange][];
  private readonly reader: GraphReader;
  private readonly tensors: ProgramTensor[] = [];
  /** The node of each tensor that the program reads, by the tag of the table that names it. */
  private readonly attributes = new Map<string, GraphArgument>();
  private readonly userInputs = new Map<string, GraphArgument>();
  /** The names of the inputs that are buffers, and whether gradients may depend on their numbers. */
  private readonly bufferInputs = new Map<string, { readonly name: string; readonly isFloat: boolean }>();
  /** Buffers that are written, until the node that writes them is there. */
  private readonly unwritten = new Map<string, { readonly input: string; readonly result: string }>();

  constructor(module: JsonCursor, ranges: readonly [string, DimRange][]) {
    this.module = module;
    this.ranges = ranges;
    this.reader = new GraphReader(module.get('graph'));
  }

  read(): { graph: Graph; tensors: readonly ProgramTensor[] } {
    const graph = this.module.get('graph');
    const signature = this.module.get('signature');
    const inputs = graph.get('inputs').list();
    const specs = signature.get('input_specs').list();
    if (inputs.length !== specs.length)
      throw signature.wrong(`the graph has ${inputs.length} inputs, its signature ${specs.length}`);
    const leaves = this.readInputs(inputs, specs);
    this.protectWritten(graph.get('outputs').list(), signature.get('output_specs').list());
    this.reader.nodes(() => this.writeBuffers());
    this.readSignature(leaves);
    this.readOutputs(graph.get('outputs').list(), signature);
    for (const [symbol, range] of this.ranges) this.reader.builder.range(symbol, range);
    return { graph: this.reader.builder.build(), tensors: this.tensors };
  }

  /** User inputs become placeholders, which come first; the others attributes. Returns what the caller gives, in order. */
  private readInputs(inputs: readonly JsonCursor[], specs: readonly JsonCursor[]): GraphArgument[] {
    const leaves: GraphArgument[] = [];
    const pairs = inputs.map((input, i) => ({
      input,
      spec: specs[i]!,
      union: specs[i]!.union(),
    }));
    for (const { input, spec, union } of pairs) {
      const [tag, value] = union;
      if (tag === 'constant_input') leaves.push(constantValue(value.get('value')));
      else if (tag === 'user_input') leaves.push(this.userInput(input, value, spec));
    }
    for (const { input, spec, union } of pairs) {
      const [tag, value] = union;
      if (tag !== 'constant_input' && tag !== 'user_input') this.attribute(input, tag, value, spec);
    }
    return leaves;
  }

  private userInput(input: JsonCursor, value: JsonCursor, spec: JsonCursor): GraphArgument {
    const [tag, inner] = input.union();
    if (tag === 'as_custom_obj') throw input.wrong(customObject(inner));
    const name = inputName(input);
    if (name === undefined) return this.reader.argument(input);
    if (inputName(value.get('arg')) !== name) throw spec.wrong(`the signature calls input ${shown(name)} otherwise`);
    const node = this.reader.placeholder(name, input);
    this.userInputs.set(name, node);
    return node;
  }

  private attribute(input: JsonCursor, tag: string, value: JsonCursor, spec: JsonCursor): void {
    const found = describeTensor(tag, value, spec);
    const name = inputName(input);
    if (name === undefined || value.get('arg').get('name').text() !== name)
      throw spec.wrong(`the signature calls input ${shown(name ?? 'without a name')} otherwise`);
    const { target, role, persistent } = found;
    const meta = this.reader.table.find(name);
    const node = this.reader.builder.attribute(target, {
      name,
      role,
      meta,
      ...(role === 'buffer' && !persistent ? { persistent } : {}),
    });
    this.reader.define(name, node, input);
    this.tensors.push(found);
    this.attributes.set(`${role} ${target}`, node);
    if (role === 'buffer') this.bufferInputs.set(target, { name, isFloat: isFloat(meta) });
  }

  /**
   * A buffer that is written is read from a copy: backward may need what it was, and PyTorch's own way of running such
   * graphs fails there. The copy is made where the buffer is first read, so that a stage has both.
   */
  private protectWritten(outputs: readonly JsonCursor[], specs: readonly JsonCursor[]): void {
    const { reader } = this;
    specs.forEach((spec, i) => {
      const [tag, value] = spec.union();
      if (tag !== 'buffer_mutation') return;
      const target = value.get('buffer_name').text();
      const buffer = this.attributes.get(`buffer ${target}`);
      const input = this.bufferInputs.get(target)?.name;
      const result = outputs[i] === undefined ? undefined : inputName(outputs[i]);
      if (buffer === undefined || input === undefined || result === undefined) return;
      const meta = reader.table.find(input);
      reader.redefine(input, () =>
        reader.builder.call('aten::clone', [buffer], { name: `${input}_before`, meta, modules: reader.modules }),
      );
      this.unwritten.set(target, { input, result });
    });
  }

  /** Writes the buffers whose new values are there, once their old ones have been copied. */
  private writeBuffers(): void {
    for (const [target, { input, result }] of this.unwritten) {
      const value = this.reader.made(result);
      if (value !== undefined && this.reader.made(input) !== undefined) this.writeBuffer(target, value);
    }
  }

  private writeBuffer(target: string, value: GraphArgument): void {
    const { builder, modules } = this.reader;
    const { isFloat: depends = false } = this.bufferInputs.get(target) ?? {};
    // A buffer holds numbers from one call to the next, not what they were computed from.
    const numbers = depends ? builder.call('aten::detach', [value], { modules }) : value;
    builder.call('aten::copy_', [this.attributes.get(`buffer ${target}`)!, numbers], { modules });
    this.unwritten.delete(target);
  }

  private readSignature(leaves: readonly GraphArgument[]): void {
    const { root, tuples } = this.rootSignature();
    const text = root.get('in_spec');
    const spec = readTreeSpec(text, tuples);
    this.checkLeaves(text, spec, leaves.length, 'inputs');
    const filled = fillTree(spec, leaves);
    if (!Array.isArray(filled) || filled.length !== 2) throw text.wrong('inputs are positional and keyword arguments');
    const [args, kwargs] = filled as [GraphArgument, GraphArgument];
    if (!Array.isArray(args) || typeof kwargs !== 'object' || kwargs === null || !('dict' in kwargs))
      throw text.wrong('inputs are positional and keyword arguments');
    const names = root
      .find('forward_arg_names')
      ?.list()
      .map((name) => name.text());
    this.reader.builder.callAs({ args, kwargs: kwargs.dict, ...(names === undefined ? {} : { names }) });
  }

  private rootSignature(): { root: JsonCursor; tuples: NamedTuples } {
    const calls = this.module.get('module_call_graph');
    const [first] = calls.list();
    if (first === undefined || first.get('fqn').text() !== '')
      throw calls.wrong('the first entry is the whole program');
    const named = this.module.find('treespec_namedtuple_fields')?.entries() ?? [];
    const tuples = new Map(
      named.map(
        ([name, fields]) =>
          [
            name,
            fields
              .get('field_names')
              .list()
              .map((field) => field.text()),
          ] as const,
      ),
    );
    return { root: first.get('signature'), tuples };
  }

  private checkLeaves(at: JsonCursor, spec: TreeSpec, found: number, what: string): void {
    const wanted = countLeaves(spec);
    if (wanted !== found) throw at.wrong(`the structure has ${wanted} ${what}, the program ${found}`);
  }

  private readOutputs(outputs: readonly JsonCursor[], signature: JsonCursor): void {
    const specs = signature.get('output_specs').list();
    if (outputs.length !== specs.length)
      throw signature.wrong(`the graph has ${outputs.length} outputs, its signature ${specs.length}`);
    const leaves: GraphArgument[] = [];
    /** Values that were written to a tensor: who returns them returns the tensor. */
    const written = new Map<string, GraphArgument>();
    const results = outputs.map((output) => this.reader.argument(output)); // before anything is written
    specs.forEach((spec, i) => {
      const [tag, value] = spec.union();
      const result = results[i]!;
      if (tag === 'user_output') leaves.push(result);
      else this.mutation(tag, value, { result, spec, written });
    });
    const { root, tuples } = this.rootSignature();
    const text = root.get('out_spec');
    const spec = readTreeSpec(text, tuples);
    this.checkLeaves(text, spec, leaves.length, 'outputs');
    const returned = leaves.map((leaf) => written.get(JSON.stringify(leaf)) ?? leaf);
    this.reader.builder.output(fillTree(spec, returned));
  }

  /** A result that is written back to a tensor becomes a copy at the end of the graph. */
  private mutation(
    tag: string,
    value: JsonCursor,
    { result, spec, written }: { result: GraphArgument; spec: JsonCursor; written: Map<string, GraphArgument> },
  ): void {
    const target = this.mutated(tag, value, spec);
    if (tag === 'buffer_mutation') {
      const name = value.get('buffer_name').text();
      if (this.unwritten.has(name)) this.writeBuffer(name, result);
      if (this.bufferInputs.get(name)?.isFloat === true) return; // the value has the gradient, the buffer has none
    } else this.reader.builder.call('aten::copy_', [target, result]);
    written.set(JSON.stringify(result), target);
  }

  private mutated(tag: string, value: JsonCursor, spec: JsonCursor): GraphArgument {
    const find = (key: string, table: ReadonlyMap<string, GraphArgument>, prefix: string): GraphArgument => {
      const name = value.get(key);
      const found = table.get(prefix + name.text());
      if (found === undefined) throw name.wrong(`${shown(name.text())} is not an input of the program`);
      return found;
    };
    switch (tag) {
      case 'buffer_mutation':
        return find('buffer_name', this.attributes, 'buffer ');
      case 'parameter_mutation':
        return find('parameter_name', this.attributes, 'parameter ');
      case 'user_input_mutation':
        return find('user_input_name', this.userInputs, '');
      case 'loss_output':
      case 'gradient_to_parameter':
      case 'gradient_to_user_input':
        throw spec.wrong('this is a training graph with its backward inside; export the forward only');
      default:
        throw spec.wrong(`outputs of kind ${shown(tag)} are not known here`);
    }
  }
}

function isFloat(meta: ValueMeta | undefined): boolean {
  return meta !== undefined && meta !== null && 'dtype' in meta && /^(b?float|complex)/.test(meta.dtype);
}

function describeTensor(tag: string, value: JsonCursor, spec: JsonCursor): ProgramTensor {
  switch (tag) {
    case 'parameter':
      return { target: value.get('parameter_name').text(), role: 'parameter', persistent: true, table: 'weights' };
    case 'buffer': {
      const persistent = value.get('persistent').bool();
      const table = persistent ? 'weights' : 'constants';
      return { target: value.get('buffer_name').text(), role: 'buffer', persistent, table };
    }
    case 'tensor_constant':
      return {
        target: value.get('tensor_constant_name').text(),
        role: 'buffer',
        persistent: false,
        table: 'constants',
      };
    case 'custom_obj':
      throw spec.wrong(customObject(value.get('arg')));
    default:
      throw spec.wrong(`inputs of kind ${shown(tag)} are not known here`);
  }
}

function constantValue(value: JsonCursor): GraphArgument {
  const [tag, inner] = value.union();
  switch (tag) {
    case 'as_none':
      return null;
    case 'as_int':
      return integerArgument(inner);
    case 'as_float':
      return floatArgument(inner.float());
    case 'as_string':
      return inner.text();
    case 'as_bool':
      return inner.bool();
    default:
      throw value.wrong(`a constant cannot be ${shown(tag)}`);
  }
}
