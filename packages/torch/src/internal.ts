/**
 * @file What other packages of this project may use beyond the public API: operators bound to handles, the recorder of
 * calls, trees of tensors, bytes of files, directories of zip files, draws by name. No part of it is stable.
 */
export type { BoundArgument, BoundOp } from './addon/bound-op.ts';
export {
  findZipEnd,
  readZipEnd64,
  readZipHeader,
  readZipRecord,
  ZIP_END64_SIZE,
  ZIP_HEADER_SIZE,
  ZIP_TAIL,
  type ZipDirectory,
} from './base/zip-directory.ts';
export {
  type BytesRange,
  copyTensors,
  hashRanges,
  type ScannedBytes,
  scanBytes,
  startWriting,
  viewBytes,
} from './files/bytes.ts';
export { layoutSafetensors, type SafetensorsItem, type SafetensorsLayout } from './files/safetensors.ts';
export { bindOp, callGiven } from './op/bind.ts';
export {
  describeHandle,
  duplicateHandle,
  hasDescription,
  itemOfHandle,
  type KeepConstant,
  type Operand,
  ownBytesOfHandle,
  type PreparedCall,
  prepareCall,
  type RegisterKind,
  type Registers,
  releaseHandle,
  releaseHandles,
  sizeOfHandle,
} from './op/prepared.ts';
export { watchQuietChanges } from './op/quiet-changes.ts';
export { type DrawName, drawName, drawsByName, inCall } from './tensor/draws.ts';
export {
  type CustomFunction,
  type Recorder,
  recorder,
  sharesStorage,
  torchSourceRoot,
  withRecorder,
} from './tensor/recorder.ts';
export { holdsAlone } from './tensor/scope.ts';
export { markShard } from './tensor/shard-marks.ts';
export { originalHolders, type StandIn, standIn } from './tensor/stand-in.ts';
export { threadTime } from './tensor/thread-time.ts';
export { isPlainObject, mapTensors, tensorsIn } from './tensor/tree.ts';
