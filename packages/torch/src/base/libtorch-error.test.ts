import { describe, expect, test } from 'vitest';
import { cuda, randn, TorchError } from '../index.ts';
import { readLibtorchError } from './libtorch-error.ts';

/** The text of libtorch for an operator without a kernel, shortened in its lists. */
const noKernel = (op: string, backend: string): string =>
  `aten::randn: Could not run '${op}' with arguments from the '${backend}' backend. This could be because the operator doesn't exist for this backend, or was omitted. '${op}' is only available for these backends: [CPU, Meta, QuantizedCPU, BackendSelect, Python, AutogradCPU].\n\nCPU: registered at /pytorch/RegisterCPU_1.cpp:2413 [kernel]\nMeta: registered at /pytorch/RegisterMeta_0.cpp:4961 [kernel]\n`;

describe('the texts of libtorch are cut to the sentence that helps', () => {
  test.each([
    [
      noKernel('aten::empty.memory_format', 'CUDA'),
      'NO_CUDA',
      "aten::randn: there is no CUDA here: no driver; use device: 'cpu', or see npx pipewright doctor",
    ],
    [
      'aten::to: PyTorch is not linked with support for cuda devices',
      'NO_CUDA',
      "aten::to: there is no CUDA here: no driver; use device: 'cpu', or see npx pipewright doctor",
    ],
    [
      'aten::to: PyTorch is not linked with support for mps devices',
      'LIBTORCH',
      "aten::to: this build of libtorch has no device 'mps'; use 'cpu'",
    ],
    [
      noKernel('aten::empty.memory_format', 'MPS'),
      'LIBTORCH',
      "aten::randn: this build of libtorch has no device 'mps'; use 'cpu'",
    ],
    [
      noKernel('aten::_cudnn_rnn', 'CPU'),
      'LIBTORCH',
      "aten::randn: libtorch has no aten::_cudnn_rnn for cpu tensors; devices that have it: 'cpu'",
    ],
    [
      'mm: device-side assert\nCUDA kernel errors might be asynchronously reported\nFor debugging consider',
      'LIBTORCH',
      'mm: device-side assert',
    ],
    ['add: sizes differ\nException raised from infer_size at ExpandUtils.cpp:31', 'LIBTORCH', 'add: sizes differ'],
    ['two\nlines that belong together', 'LIBTORCH', 'two\nlines that belong together'],
  ])('%#', (text, code, message) => {
    expect(readLibtorchError('LIBTORCH', text, () => 'no driver')).toEqual({ code, message });
  });

  test('where CUDA works, a kernel that is missing is told as such', () => {
    const { code, message } = readLibtorchError('LIBTORCH', noKernel('aten::foo', 'CUDA'), () => '');
    expect([code, message]).toEqual([
      'LIBTORCH',
      "aten::randn: libtorch has no aten::foo for cuda tensors; devices that have it: 'cpu'",
    ]);
  });

  test.skipIf(cuda.isAvailable())("device: 'cuda' without CUDA is one line with the way out", () => {
    for (const make of [() => randn([2], { device: 'cuda' }), () => randn([2]).to('cuda')]) {
      let caught: unknown;
      try {
        make();
      } catch (error) {
        caught = error;
      }
      expect(caught).toBeInstanceOf(TorchError);
      const { code, message, name } = caught as TorchError;
      expect([name, code]).toEqual(['TorchError', 'NO_CUDA']);
      expect(message).toMatch(
        /^aten::\w+: there is no CUDA here: [^\n]+; use device: 'cpu', or see npx pipewright doctor$/,
      );
    }
  });
});
