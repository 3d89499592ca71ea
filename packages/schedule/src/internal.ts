/**
 * @file What other packages of this project may use beyond the public API: the packed columns and the way to build them.
 * No part of it is stable.
 */

export type { ScheduleHead } from './model/column-builder.ts';
export { RowBuilder } from './model/column-builder.ts';
export { nearest } from './model/errors.ts';
export {
  Code,
  CompositeTable,
  codeOf,
  isCollectiveCode,
  isComposite,
  isComputeCode,
  isMessage,
  isSendCode,
  kindOf,
  Layout,
  samePair,
  unpack,
  withCode,
  wordCode,
} from './model/packed.ts';
export { ScheduleBuilder } from './model/schedule-builder.ts';
