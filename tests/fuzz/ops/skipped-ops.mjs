// @ts-check
/** @file Operators that the fuzzer leaves out, and why. */
export const skippedOps = new Map([
  ['aten::from_file', 'makes and maps files by any name'],
  ['aten::_unsafe_index', 'documented to skip the bounds check: corrupts memory quietly, in Python too'],
  ['aten::_unsafe_index_put', 'the same'],
  ['aten::_unsafe_masked_index', 'the same'],
  ['aten::_unsafe_masked_index_put_accumulate', 'the same'],
  ['inductor::_reinterpret_tensor', 'documented to skip the bounds check: reads beyond the memory, in Python too'],
]);
