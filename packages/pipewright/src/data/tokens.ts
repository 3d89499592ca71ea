/** @file Tokens in a file that is mapped into memory: a sample is a sequence of tokens, with the same sequence one token later as target. */
import { writeSync } from 'node:fs';
import { resolve } from 'node:path';
import { MappedFile, type Tensor, tensor } from '@pipewright/torch';
import { writeFile } from '@pipewright/torch/files';
import {
  checkArgument,
  checkChoice,
  checkCount,
  checkOptions,
  checkPath,
  checkRequired,
  show,
} from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { builtInModule } from './built-in.ts';
import { Dataset, type DatasetModule } from './dataset.ts';

/** The type of a token in the file. */
export type TokenType = 'uint8' | 'uint16' | 'int32';

const tokenTypes = {
  uint8: { bytes: 1, stored: 'uint8', most: 0xff },
  uint16: { bytes: 2, stored: 'int16', most: 0xffff },
  int32: { bytes: 4, stored: 'int32', most: 0x7fffffff },
} as const;

/** The options of a token dataset. */
export interface TokenDatasetOptions {
  /** Tokens of a sample. */
  readonly length: number;
  /** How many tokens the next sample begins after this one. Default: `length`. */
  readonly stride?: number | undefined;
  /** The type of a token in the file. Default uint16. */
  readonly dtype?: TokenType | undefined;
}

/**
 * Samples of `length` tokens and the same one token later, both int64: the input and the target of a language model.
 *
 * @example const [inputs, targets] = new TokenDataset('train.bin', { length: 256 }).getItem(0)
 */
export class TokenDataset extends Dataset<[inputs: Tensor, targets: Tensor]> {
  readonly length: number;
  /** Number of tokens in the file. */
  readonly tokens: number;
  private readonly path: string;
  private readonly options: Required<TokenDatasetOptions>;
  private readonly rows: Tensor;

  constructor(path: string, options: TokenDatasetOptions) {
    super();
    checkPath('TokenDataset', 'the file', path);
    checkRequired('TokenDataset', options, ['length', 'stride', 'dtype']);
    const length = checkCount('TokenDataset', 'length', options.length);
    const stride = checkCount('TokenDataset', 'stride', options.stride ?? length);
    const dtype = checkChoice('TokenDataset', 'dtype', options.dtype ?? 'uint16', ['uint8', 'uint16', 'int32']);
    const { bytes, stored } = tokenTypes[dtype];
    this.path = resolve(path);
    this.options = { length, stride, dtype };
    using file = openTokens(this.path);
    this.tokens = Math.floor(file.size / bytes);
    if (file.size % bytes !== 0)
      throw new PipelineError(
        'BAD_DATASET',
        `TokenDataset: ${path} has ${file.size} bytes, which are no whole number of tokens of type ${dtype}; is it of another type?`,
      );
    this.length = Math.max(0, Math.floor((this.tokens - length - 1) / stride) + 1);
    if (this.tokens < length + 1)
      throw new PipelineError(
        'BAD_DATASET',
        `TokenDataset: ${path} has ${this.tokens} tokens, a sample of ${length} needs ${length + 1}; give a smaller length`,
      );
    using all = file.tensor({ offset: 0, dtype: stored, shape: [this.tokens] });
    this.rows = all.asStrided([this.length, length + 1], [stride, 1]);
  }

  override get source(): DatasetModule {
    return { module: builtInModule, data: { kind: 'tokens', path: this.path, options: this.options } };
  }

  getItem(index: number): [inputs: Tensor, targets: Tensor] {
    if (!Number.isInteger(index) || index < 0 || index >= this.length)
      throw new PipelineError('BAD_INPUT', `TokenDataset: there is no sample ${show(index)}; there are ${this.length}`);
    return this.cut(this.rows.select(0, index));
  }

  override getBatch(indices: readonly number[]): [inputs: Tensor, targets: Tensor] {
    return this.cut(this.rows.indexSelect(0, tensor(indices as number[], { dtype: 'int64' })));
  }

  /** Closes the file. */
  dispose(): void {
    this.rows.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private cut(stored: Tensor): [Tensor, Tensor] {
    const wide = stored.to('int64');
    const all = this.options.dtype === 'uint16' ? wide.bitwiseAnd(0xffff) : wide;
    const { length } = this.options;
    return [all.narrow(-1, 0, length).contiguous(), all.narrow(-1, 1, length).contiguous()];
  }
}

function openTokens(path: string): MappedFile {
  try {
    return MappedFile.open(path);
  } catch (cause) {
    // The message begins with the path.
    throw new PipelineError(
      'BAD_DATASET',
      `TokenDataset: cannot read ${(cause as Error).message}; give the path of a file that writeTokens has made, or one with the same bytes`,
      { path },
      { cause },
    );
  }
}

/**
 * Writes tokens to a file that `TokenDataset` reads: the numbers one after the other, without a header.
 *
 * @example writeTokens('train.bin', [tokenizer.encode(text)]) // pieces of any length
 */
export function writeTokens(
  path: string,
  pieces: Iterable<ArrayLike<number>>,
  options: { readonly dtype?: TokenType | undefined } = {},
): number {
  checkPath('writeTokens', 'the file', path);
  const isIterable = typeof pieces === 'object' && pieces !== null && Symbol.iterator in pieces;
  checkArgument('writeTokens', isIterable, ['the second argument', pieces], 'an array of arrays of tokens');
  checkOptions('writeTokens', options, ['dtype']);
  const dtype = checkChoice('writeTokens', 'dtype', options.dtype ?? 'uint16', ['uint8', 'uint16', 'int32']);
  const { most } = tokenTypes[dtype];
  const make = { uint8: Uint8Array, uint16: Uint16Array, int32: Int32Array }[dtype];
  let written = 0;
  writeFile(path, (file) => {
    for (const piece of pieces) {
      const isList = typeof piece === 'object' && piece !== null && Number.isSafeInteger(piece.length);
      checkArgument('writeTokens', isList, ['a piece', piece], 'an array of tokens');
      const tokens = new make(piece.length);
      for (let i = 0; i < tokens.length; i++) {
        const token = piece[i]!;
        checkArgument('writeTokens', typeof token === 'number', [`token ${written + i}`, token], 'a number');
        tokens[i] = token;
        if (tokens[i] !== token)
          throw new PipelineError(
            'BAD_INPUT',
            `writeTokens: token ${written + i} is ${show(token)}, but ${dtype} holds 0 to ${most}; give a larger dtype, such as 'int32'`,
          );
      }
      const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
      for (let at = 0; at < bytes.length; ) at += writeSync(file, bytes, at);
      written += tokens.length;
    }
  });
  return written;
}
