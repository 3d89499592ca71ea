/** @file The container of a `.pt2` file: which model is in it, and where its program and tensors lie. */
import { type JsonCursor, parseJson } from './json-cursor.ts';
import { type Pt2Problem, pt2Error, shown } from './pt2-error.ts';
import { ZipFile } from './zip-file.ts';

const largestText = 1000;
const largestJson = 500_000_000;

/** An open `.pt2` file. Close it after use. */
export class Pt2Archive {
  readonly zip: ZipFile;
  /** The folder that all entries are in. */
  readonly root: string;
  /** The name of the model that is read. */
  readonly model: string;

  private constructor(zip: ZipFile, wanted: string | undefined) {
    this.zip = zip;
    this.root = this.findRoot();
    this.checkKind();
    this.model = this.findModel(wanted);
  }

  /** Opens a file and finds a model in it: the one called `model`, or the only one. */
  static open(path: string, model?: string): Pt2Archive {
    const zip = ZipFile.open(path);
    try {
      return new Pt2Archive(zip, model);
    } catch (error) {
      zip[Symbol.dispose]();
      throw error;
    }
  }

  /** The program. */
  program(): JsonCursor {
    return this.json(`models/${this.model}.json`, 'program');
  }

  /** The table of weights or constants; nothing where the file has none. */
  table(kind: 'weights' | 'constants'): JsonCursor | undefined {
    const name = `data/${kind}/${this.model}_${kind}_config.json`;
    return this.zip.entries.has(this.root + name) ? this.json(name, kind).get('config') : undefined;
  }

  [Symbol.dispose](): void {
    this.zip[Symbol.dispose]();
  }

  private error(code: Pt2Problem, message: string): Error {
    return pt2Error(code, this.zip.path, message);
  }

  private json(name: string, place: string): JsonCursor {
    const entry = this.zip.entries.get(this.root + name);
    if (entry === undefined) throw this.error('MISSING', `the file has no ${shown(name)}`);
    return parseJson(this.zip.path, place, this.zip.read(entry, largestJson));
  }

  private text(name: string): string | undefined {
    const entry = this.zip.entries.get(this.root + name);
    return entry === undefined ? undefined : new TextDecoder().decode(this.zip.read(entry, largestText));
  }

  private findRoot(): string {
    const names = [...this.zip.entries.keys()];
    const [first] = names;
    if (first === undefined) throw this.error('NOT_PT2', 'the zip is empty');
    if (this.zip.entries.has('serialized_exported_program.json'))
      throw this.error(
        'OLD',
        'written by torch.export of PyTorch 2.7 or older, whose weights are Python pickles; save it again with 2.9 or newer',
      );
    const slash = first.indexOf('/');
    if (slash < 0) throw this.error('NOT_PT2', `not a .pt2 file: entry ${shown(first)} lies in no folder`);
    const root = first.slice(0, slash + 1);
    const stray = names.find((name) => !name.startsWith(root));
    if (stray !== undefined)
      throw this.error('NOT_PT2', `entries lie in several folders: ${shown(first)} and ${shown(stray)}`);
    return root;
  }

  private checkKind(): void {
    const has = (name: string): boolean => this.zip.entries.has(this.root + name);
    const format = this.text('archive_format');
    if (format !== 'pt2') {
      if (has('code/') || has('constants.pkl'))
        throw this.error('NOT_PT2', 'this is a TorchScript file; export the model with torch.export instead');
      if (has('data.pkl'))
        throw this.error(
          'NOT_PT2',
          'this is a file of torch.save, a Python pickle, which is never opened; save tensors as safetensors, models with torch.export.save',
        );
      throw this.error(
        'NOT_PT2',
        format === undefined
          ? 'not a .pt2 file: it has no archive_format'
          : `its archive_format is ${shown(format)}, not "pt2"`,
      );
    }
    const version = this.text('archive_version')?.trim() ?? '0';
    if (version !== '0') throw this.error('VERSION', `its archive version is ${shown(version)}, this reader knows 0`);
    const order = this.text('byteorder') ?? 'little';
    if (order !== 'little')
      throw this.error('BYTE_ORDER', `its tensors are stored in ${shown(order)} byte order, this reader knows little`);
  }

  private findModel(wanted: string | undefined): string {
    const prefix = `${this.root}models/`;
    const models = [...this.zip.entries.keys()]
      .filter((name) => name.startsWith(prefix) && name.endsWith('.json'))
      .map((name) => name.slice(prefix.length, -'.json'.length));
    if (models.length === 0) {
      const isCompiled = [...this.zip.entries.keys()].some((name) => name.startsWith(`${this.root}data/aotinductor/`));
      throw this.error(
        'NO_MODEL',
        isCompiled
          ? 'it holds native code of AOTInductor and no program; export the model with torch.export.save'
          : 'it holds no program',
      );
    }
    const found = wanted ?? (models.includes('model') ? 'model' : models.length === 1 ? models[0] : undefined);
    if (found === undefined || !models.includes(found))
      throw this.error(
        'NO_MODEL',
        `there is no model ${wanted === undefined ? 'called "model"' : shown(wanted)}; there are ${models.map(shown).join(', ')}; choose one with the option model`,
      );
    for (const kind of ['weights', 'constants'])
      if (this.zip.entries.has(`${this.root}data/${kind}/${found}.pt`))
        throw this.error(
          'OLD',
          'written by PyTorch 2.8, whose weights are Python pickles; save it again with 2.9 or newer',
        );
    return found;
  }
}
