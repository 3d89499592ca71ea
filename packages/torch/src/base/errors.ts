/** @file The error of this package: a message that says what to do, and a stable `code`. */

/**
 * What went wrong, by a name that stays. Those of finding and building the engine belong to `AddonError`, those of
 * communication to `DistributedError`, which has some of the others too.
 */
export const torchErrorCodes = [
  'ABORTED',
  'ADDON_LOAD_FAILED',
  'ADDON_NOT_BUILT',
  'ALREADY_INITIALIZED',
  'ARGUMENT_COUNT',
  'ASYNC',
  'BACKWARD_TWICE',
  'BAD_ARGUMENT',
  'BUILD_FAILED',
  'BUILD_TOOL_NOT_FOUND',
  'BUSY',
  'CALLBACK',
  'CANCELLED',
  'CANNOT_WRITE',
  'CHECKPOINT',
  'CHECKPOINT_MISMATCH',
  'CHECKPOINT_STOP',
  'CLOSED',
  'DEVICE',
  'DISK_TOO_FULL',
  'DISPOSED',
  'DOWNLOAD_FAILED',
  'DTYPE',
  'FILE',
  'FORWARD_MODE',
  'GRADCHECK',
  'GRAD_SCALER',
  'GRAPH',
  'INDEX',
  'INTERNAL',
  'IN_USE',
  'LIBTORCH',
  'LIBTORCH_NOT_FOUND',
  'LOCK_TIMEOUT',
  'META',
  'MISMATCH',
  'MISSING_ARGUMENT',
  'NOT_CALLABLE',
  'NOT_CONTIGUOUS',
  'NOT_FINITE',
  'NOT_FOUND',
  'NOT_INITIALIZED',
  'NOT_IN_BACKWARD',
  'NOT_IN_FORWARD',
  'NOT_JSON',
  'NOT_LEAF',
  'NOT_RESIZABLE',
  'NOT_SHAREABLE',
  'NO_CUDA',
  'NO_CUDA_ADDON',
  'NO_GRAD',
  'NO_NCCL',
  'NO_OVERLOAD',
  'NO_STORAGE',
  'OUT_OF_MEMORY',
  'PEER_LOST',
  'PROTOCOL',
  'PYTHON_NOT_FOUND',
  'RANK',
  'RANK_ENDED',
  'RANK_FAILED',
  'REFUSED',
  'SAFETENSORS',
  'SCOPE',
  'SHAPE',
  'SIZE',
  'SPARSE',
  'STALE_HANDLE',
  'STATE_DICT',
  'TERMINATED',
  'TIMED_OUT',
  'TOO_MANY_HANDLES',
  'TREE_DEPTH',
  'UNKNOWN_OP',
  'UNKNOWN_OPTION',
  'UNSUPPORTED_PLATFORM',
  'UNSUPPORTED_TYPE',
  'UNUSED',
  'WHEEL_CORRUPT',
  'WRONG_THREAD',
] as const;

/** One of `torchErrorCodes`. */
export type TorchErrorCode = (typeof torchErrorCodes)[number];

/**
 * What goes wrong in the engine. `code` is stable: `DISPOSED`, `SHAPE`, `DTYPE`, `BAD_ARGUMENT`, `LIBTORCH` and so on.
 *
 * @example try { a.matmul(b) } catch (error) { if (error instanceof TorchError) console.log(error.code) }
 */
export class TorchError extends Error {
  override readonly name: string = 'TorchError';
  readonly code: TorchErrorCode;

  constructor(code: TorchErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

/** The near miss among `names`, as ` (did you mean 'x'?)`, or nothing. */
export function didYouMean(word: string, names: Iterable<string>): string {
  if (typeof word !== 'string') return '';
  let best = '';
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const name of names) {
    const distance = editDistance(word.toLowerCase(), name.toLowerCase(), bestDistance);
    if (distance < bestDistance) [best, bestDistance] = [name, distance];
  }
  return best === '' ? '' : ` (did you mean '${best}'?)`;
}

/** What a value may not have to be options: its own names say nothing of what is in a list, a map, a promise or a tensor. */
const notOptions = [Symbol.iterator, Symbol.dispose, 'then'];

/** Whether a value may have values by name. */
function isRecord(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !notOptions.some((key) => key in value);
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  const { constructor } = value as { readonly constructor?: { readonly name?: unknown } };
  return typeof value === 'object' ? `a ${String(constructor?.name ?? 'list')}` : `a ${typeof value}`;
}

/** Refuses options that do not exist, by name. */
export function checkOptions(where: string, options: object | undefined, known: readonly string[]): void {
  if (options === undefined) return;
  if (!isRecord(options))
    throw new TorchError(
      'BAD_ARGUMENT',
      `${where}: the options are ${kindOf(options)}; give an object${known.length === 0 ? '' : ` of ${known.join(', ')}`}`,
    );
  for (const key of Object.keys(options)) {
    if (known.includes(key)) continue;
    const list = known.length === 0 ? 'it takes no options' : `it takes ${known.join(', ')}`;
    throw new TorchError('UNKNOWN_OPTION', `${where}: unknown option '${key}'${didYouMean(key, known)}; ${list}`);
  }
}

function editDistance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) >= limit) return limit;
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1;
      next.push(Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + cost));
    }
    row = next;
  }
  return row[b.length] ?? limit;
}
