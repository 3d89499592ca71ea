/**
 * @file A disk in memory that can lose its power: what was not synced is gone. It is the file system of a save in tests; what is on it
 * can be put into a real folder, as it would be found after a crash.
 */
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** Thrown at the call at which the machine dies, and at every later one. */
export class Died extends Error {}

interface FileNode {
  bytes: Buffer;
  synced: Buffer;
}

interface FolderNode {
  entries: Map<string, Node>;
  synced: Map<string, Node>;
}

type Node = FileNode | FolderNode;

const isFolder = (node: Node | undefined): node is FolderNode => node !== undefined && 'entries' in node;

/** The disk. */
export class VolatileDisk {
  /** Calls that change something, so far. */
  calls = 0;
  /** What the calls were. */
  readonly log: string[] = [];
  private readonly root: FolderNode = { entries: new Map(), synced: new Map() };
  private readonly handles = new Map<number, Node>();
  private next = 3;
  private readonly dieAt: number;

  /** A disk with the content of a real folder, all of it synced, that dies at the given call. */
  constructor(folder: string, dieAt = Number.POSITIVE_INFINITY) {
    this.dieAt = dieAt;
    const copy = (path: string, into: FolderNode): void => {
      for (const name of readdirSync(path)) {
        const at = join(path, name);
        const node: Node = statSync(at).isDirectory()
          ? { entries: new Map(), synced: new Map() }
          : { bytes: readFileSync(at), synced: readFileSync(at) };
        if (isFolder(node)) copy(at, node);
        into.entries.set(name, node);
        into.synced.set(name, node);
      }
    };
    copy(folder, this.root);
  }

  /** Writes what is on the disk into a real folder: all that was called for, or only what was synced. */
  recover(folder: string, what: 'all' | 'synced'): void {
    const put = (node: FolderNode, path: string): void => {
      mkdirSync(path, { recursive: true });
      for (const [name, each] of what === 'all' ? node.entries : node.synced) {
        if (isFolder(each)) put(each, join(path, name));
        else writeFileSync(join(path, name), what === 'all' ? each.bytes : each.synced);
      }
    };
    put(this.root, folder);
  }

  private change(call: string): void {
    if (this.calls >= this.dieAt) throw new Died(call);
    this.calls++;
    this.log.push(call);
    if (this.calls === this.dieAt) throw new Died(call);
  }

  private look(): void {
    if (this.calls >= this.dieAt) throw new Died('a look');
  }

  private find(path: string): Node | undefined {
    let node: Node | undefined = this.root;
    for (const part of path.split('/').filter((each) => each !== '' && each !== '.'))
      node = isFolder(node) ? node.entries.get(part) : undefined;
    return node;
  }

  private parent(path: string): FolderNode {
    const node = this.find(dirname(path) === '.' ? '' : dirname(path));
    if (!isFolder(node)) throw Object.assign(new Error(`no folder for ${path}`), { code: 'ENOENT' });
    return node;
  }

  private nameOf(path: string): string {
    return path.slice(path.lastIndexOf('/') + 1);
  }

  openSync(path: string, flags: string): number {
    let node = this.find(path);
    if (flags === 'w') {
      this.change(`open ${path}`);
      node = { bytes: Buffer.alloc(0), synced: Buffer.alloc(0) };
      this.parent(path).entries.set(this.nameOf(path), node);
    } else this.look();
    if (node === undefined) throw Object.assign(new Error(`no ${path}`), { code: 'ENOENT' });
    this.handles.set(this.next, node);
    return this.next++;
  }

  writeSync(file: number, bytes: Uint8Array, offset: number, length: number): number {
    this.change('write');
    const node = this.handles.get(file) as FileNode;
    node.bytes = Buffer.concat([node.bytes, bytes.subarray(offset, offset + length)]);
    return length;
  }

  fsyncSync(file: number): void {
    this.change('fsync');
    const node = this.handles.get(file)!;
    if (isFolder(node)) node.synced = new Map(node.entries);
    else node.synced = node.bytes;
  }

  closeSync(file: number): void {
    this.look();
    this.handles.delete(file);
  }

  renameSync(from: string, to: string): void {
    this.change(`rename ${from} ${to}`);
    const node = this.find(from)!;
    this.parent(from).entries.delete(this.nameOf(from));
    this.parent(to).entries.set(this.nameOf(to), node);
  }

  makeFolder(path: string): string | undefined {
    this.change(`mkdir ${path}`);
    if (this.find(path) !== undefined) return undefined;
    this.parent(path).entries.set(this.nameOf(path), { entries: new Map(), synced: new Map() });
    return path;
  }

  unlinkSync(path: string): void {
    this.change(`unlink ${path}`);
    if (!this.parent(path).entries.delete(this.nameOf(path)))
      throw Object.assign(new Error(`no ${path}`), { code: 'ENOENT' });
  }

  rmdirSync(path: string): void {
    this.change(`rmdir ${path}`);
    this.parent(path).entries.delete(this.nameOf(path));
  }

  readdirSync(path: string): string[] {
    this.look();
    const node = path === '' || path === '.' ? this.root : this.find(path);
    if (!isFolder(node)) throw Object.assign(new Error(`no folder ${path}`), { code: 'ENOENT' });
    return [...node.entries.keys()];
  }

  readFileSync(path: string): string {
    this.look();
    const node = this.find(path);
    if (node === undefined || isFolder(node)) throw Object.assign(new Error(`no ${path}`), { code: 'ENOENT' });
    return node.bytes.toString('utf8');
  }

  existsSync(path: string): boolean {
    this.look();
    return this.find(path) !== undefined;
  }
}
