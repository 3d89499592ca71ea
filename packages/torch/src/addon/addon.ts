/** @file The native addon: what it exports, and how it is found and loaded. */

import type { TorchErrorCode } from '../base/errors.ts';
import { libtorchErrorClass } from '../base/libtorch-error.ts';
import { loadAddon } from '../setup/load-addon.ts';

/** An operator of the dispatcher as the addon describes it. */
export interface NativeSchema {
  readonly name: string;
  readonly overload: string;
  readonly args: readonly NativeArgument[];
  readonly returns: readonly string[];
  readonly inPlace: boolean;
  /** Whether it draws random numbers, in some mode at least. */
  readonly random: boolean;
}

/** One argument of an operator. */
export interface NativeArgument {
  readonly name: string;
  /** `Tensor`, `int`, `int[2]?`, `Scalar`, `ScalarType` and so on. */
  readonly type: string;
  readonly keywordOnly: boolean;
  readonly written: boolean;
  readonly aliased: boolean;
  readonly default?: string;
}

/** An operator that can be called: values in the order of the schema, tensors as handles. */
export interface NativeOp extends NativeSchema {
  readonly call: (...values: unknown[]) => unknown;
}

/** The parameters of an optimizer that are stepped together, with their state. */
export interface NativeBucket {
  readonly kind: 'bucket';
}

/** One step of an optimizer: the numbers in the order that native/optim gives, and the learning rate where it is a tensor. */
export type NativeStep = (bucket: NativeBucket, numbers: Float64Array, learningRate: number | null) => void;

/** The addon's functions. Tensors, generators and graph nodes are small integers here. */
export interface Native {
  readonly metaArray: Float64Array;
  /** Unboxed operators by full name without `aten::`, for generated/hot-ops.ts. */
  readonly hot: Readonly<Record<string, (...values: unknown[]) => unknown>>;
  torchVersion(): string;
  cudaProblem(): string;
  cudaDeviceCount(): number;
  useGpu(index: number, ownStream: boolean): void;
  getNumThreads(): number;
  setNumThreads(count: number): void;
  parallelInfo(): string;
  /** How MKL chooses its kernels; empty before its first. */
  mklDispatch(): '' | 'features' | 'vendor';
  setDeterministic(on: boolean, warnOnly: boolean): void;
  liveBytes(): number;
  threadTime(): number;
  holdsAlone(tensor: number): boolean;
  standIn(tensor: number): [standIn: number, memory: number, bytes: number];
  originalHolders(standIn: number): number;
  dispatchState(): string;
  nothing(): void;
  startProfiler(shapes: boolean): void;
  stopProfiler(path: string): void;
  setErrorClass(type: new (code: TorchErrorCode, message: string) => Error): void;

  fromData(
    data: ArrayBuffer | ArrayBufferView,
    dtype: number,
    sizes: readonly number[],
    share: boolean,
    requiresGrad: boolean,
  ): number;
  toBuffer(tensor: number): ArrayBuffer;
  shareBuffer(tensor: number): ArrayBuffer;
  meta(tensor: number): void;
  item(tensor: number): number | boolean | bigint | { re: number; im: number };
  scalarTensor(value: unknown): number;
  release(tensor: number): void;
  releaseMany(handles: Int32Array, count: number): void;
  live(): number;
  /** Frees the tensor once the object is gone; true where memory has grown so much that a collection is due. */
  track(object: object, tensor: number): boolean;
  untrack(tensor: number): void;
  releaseTracked(tensor: number): void;
  /** Frees the tensors whose objects are gone, and says how many. */
  sweepTracked(): number;
  trackedBytes(): number;
  isMemoryPressed(): boolean;
  /** What is in use now is no reason for a collection. */
  settleTracked(): void;
  duplicate(tensor: number): number;
  isSame(a: number, b: number): boolean;
  dataPointer(tensor: number): bigint;
  grad(tensor: number): number;
  setGrad(tensor: number, grad: number | null): void;
  setRequiresGrad(tensor: number, on: boolean): void;
  version(tensor: number): number;
  toDtype(tensor: number, dtype: number): number;
  mapFile(path: string): number;
  writeFile(file: number, tensor: number): void;
  viewBytes(bytes: number, offset: number, dtype: number, sizes: readonly number[]): number;
  /** The hash of part of a uint8 tensor, with a '!' behind it where it is asked whether all elements are finite and one is not. */
  scanBytes(bytes: number, offset: number, length: number, dtype: number, checks: boolean): string;
  /** The hashes of parts of a uint8 tensor, of 16 digits each; `portable` does it without special instructions. */
  hashRanges(bytes: number, offsets: readonly number[], lengths: readonly number[], portable: boolean): string;
  /** Copies each source into its target. */
  copyTensors(targets: readonly number[], sources: readonly number[]): void;
  /** Begins to write part of a file to the disk. */
  startWriting(file: number, offset: number, length: number): void;
  setData(tensor: number, source: number): void;
  storageUseCount(tensor: number): number;
  lendStorage(tensor: number, source: number): void;
  freeStorage(tensor: number): void;
  commonTensor(name: string, parties: number, dtype: number, sizes: readonly number[]): number;
  forgetCommon(prefix: string): number;

  bindOp(name: string, overload: string): NativeOp | undefined;
  overloadsOf(name: string): string[];
  listOps(): NativeSchema[];
  hasKernel(name: string, overload: string, key: string): boolean;
  getDefaultDtype(): number;
  setDefaultDtype(code: number): void;

  backward(
    roots: number[],
    grads: (number | null)[] | null,
    retain: boolean | null,
    create: boolean,
    inputs: number[] | null,
  ): void;
  startBackward(roots: number[], grads: (number | null)[], threads: number): void;
  finishBackward(): void;
  isBackwardDone(): boolean;
  gradOf(
    outputs: number[],
    inputs: number[],
    grads: (number | null)[] | null,
    retain: boolean | null,
    create: boolean,
    allowUnused: boolean,
  ): (number | null)[];
  isGradEnabled(): boolean;
  setGradEnabled(on: boolean): boolean;
  enterInference(on: boolean): void;
  exitInference(): void;
  isInference(): boolean;
  retainGrad(tensor: number): void;
  setAutocast(device: string, on: boolean, dtype: number): [boolean, number];
  enterAutocast(): void;
  exitAutocast(): void;
  isAutocastEnabled(device: string): boolean;
  gradFn(tensor: number): number;
  nodeName(node: number): string;
  nodeId(node: number): number;
  nodeKey(node: number): bigint;
  nodeNext(node: number): number[];
  releaseNode(node: number): boolean;
  outputNr(tensor: number): number;
  edge(node: number, outputNr: number): number;
  backwardInputsFirst(roots: number[], grads: (number | null)[], inputs: number[], ready: () => void): void;
  inputBackward(outputs: number[], grads: (number | null)[], inputs: (number | null)[]): [(number | null)[], number];
  weightBackward(pending: number): void;
  dropWeightBackward(pending: number): boolean;

  makeParameter(tensor: number, requiresGrad: boolean): number;
  gradsOf(parameters: readonly number[]): number[];
  clipGradNorm(parameters: readonly number[], maxNorm: number, order: number): number | undefined;
  zeroGrads(parameters: readonly number[], setToNone: boolean): void;
  createBucket(parameters: readonly number[], slots: readonly number[]): NativeBucket;
  clearBucket(bucket: NativeBucket): void;
  bucketState(bucket: NativeBucket, slot: number): (number | null)[];
  setBucketState(bucket: NativeBucket, slot: number, tensors: readonly (number | null)[]): void;
  zeroBucketGrads(bucket: NativeBucket, setToNone: boolean): void;
  sgdStep: NativeStep;
  adamStep: NativeStep;
  adagradStep: NativeStep;
  rmspropStep: NativeStep;
  adamaxStep: NativeStep;
  nadamStep: NativeStep;
  radamStep: NativeStep;
  adadeltaStep: NativeStep;
  rpropStep: NativeStep;
  asgdStep: NativeStep;
  adafactorStep: NativeStep;
  muonStep: NativeStep;

  ownDefaultGenerator(): void;
  manualSeed(seed: number | bigint): void;
  createGenerator(device?: string): number;
  defaultGenerator(device?: string): number;
  releaseGenerator(generator: number): boolean;
  seedGenerator(generator: number | null, seed: number | bigint): void;
  generatorSeed(generator: number | null): number | bigint;
  getRandomState(generator: number | null): number;
  setRandomState(generator: number | null, state: number): void;
  /** From now on this thread draws by name; names are halves of 64 bits. */
  beginDraws(seed: number | bigint, step: number, kind: number, microbatch: number): void;
  endDraws(): void;
  /** Says which call of which layer draws, from its draw of a number on; gives the number that the one before had come to. */
  setDrawScope(low: number, high: number, call: number, draw: number): number;
  nameDraws(parameter: number, low: number, high: number): void;

  /** Tensors for other threads: a lender, and what it has lent by numbers; 0 where the lender is closed. */
  openLender(): number;
  lendTensor(lender: number, tensor: number): number;
  takeLent(lender: number, number: number): number;
  /** Frees what nobody has taken, and says how many tensors that were. */
  closeLender(lender: number): number;
  /** Makes the calling thread the lender's own, so that its end is known. */
  attachLender(lender: number): void;
  hasLenderEnded(lender: number): boolean;
}

/** The loaded addon. */
export const native: Native = load();

function load(): Native {
  const addon = loadAddon() as Native;
  addon.setErrorClass(libtorchErrorClass(() => addon.cudaProblem()));
  return addon;
}
