/** @file Ranks that do not do the same are told so, all of them, in words; on threads and processes alike. */
import { expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';

const program = new URL('../../testing/ranks/parallel/disagreeing.mjs', import.meta.url);
const { scenarios, ends } = (await import(program.href)) as Record<'scenarios' | 'ends', Record<string, unknown>>;
/** Where ranks go on alone after it, what they say of themselves differs. */
const own = /limits of the norm/;

const expected: Record<string, RegExp> = {
  'shapes of a mesh': /^NO_AGREEMENT initDeviceMesh: the shape is \[2, 1\] on rank 1 and \[1, 2\] on rank 0; give/,
  'names of a mesh': /^NO_AGREEMENT initDeviceMesh: the list of names is \[dp, pp\] on rank 1 and \[pp, dp\] on/,
  'shapes of replicas':
    /^NO_AGREEMENT replicate: the parameter '0.weight' is float32\[6, 4\] on rank 1 and float32\[4, 4\]/,
  'types of replicas': /^NO_AGREEMENT replicate: the parameter '0.weight' is float64\[4, 4\] on rank 1 and float32/,
  'replicas with and without a parameter':
    /^NO_AGREEMENT replicate: rank 1 has the parameter 'bias', float32\[2\], where rank 0 has nothing more/,
  'buckets of replicas': /^NO_AGREEMENT replicate: bucketCapMb is 25 on rank 1 and 0.00001 on rank 0/,
  'buffers of replicas': /^NO_AGREEMENT replicate: broadcastBuffers is true on rank 1 and false on rank 0/,
  'shared parameters of replicas': /^NO_AGREEMENT replicate: shareFrozen is true on rank 1 and false on rank 0/,
  'frozen parameters of replicas':
    /^NO_AGREEMENT replicate: the parameter '0.weight' is float32\[4, 4\], frozen on rank 1/,
  'units of shards':
    /^NO_AGREEMENT fullyShard: unit 0 is 0.weight, 0.bias on rank 1 and 0.weight, 0.bias, 2.weight, 2.bias/,
  'types of shards': /^NO_AGREEMENT fullyShard: mpPolicy.paramDtype is bfloat16 on rank 1 and undefined on rank 0/,
  'limits of the norm':
    /^NO_AGREEMENT clipGradNorm_: this rank called clipGradNorm_ with maxNorm [12], normType 2, another/,
  'limits of the norm before a step of the optimizer':
    /^NO_AGREEMENT stepOptimizer: this rank called stepOptimizer with maxNorm (1|undefined), normType 2, another/,
  'a module that is sharded twice': /^BAD_INPUT fullyShard: this module is sharded already/,
  'a module that is replicated and sharded': /^BAD_OPTION PipelineRuntime: .* is replicated and sharded; .*fullyShard/,
  'a part that is replicated': /^BAD_OPTION PipelineRuntime: '0' inside the module of stage 0 is replicated, but not/,
  'a parameter that is put there after the shards were made':
    /^BAD_INPUT step: the parameter '2.bias' of stage 0 is learned, but not sharded, and its gradients would not be summed/,
  'a parameter that is put there after the first step of replicas':
    /^BAD_INPUT step: the parameter '2.bias' of stage 0 is learned, but was put there after the first step.* new PipelineRuntime/,
  'a part that is sharded': /^BAD_INPUT step: the parameter '2.weight' of stage 0 is learned, but not sharded/,
  'an optimizer that took a step before the shards were made':
    /^STATE_DICT AdamW: parameter 0 is \[2, 4\] now, and was another one .*; make the optimizer after .* fullyShard/,
  'a group that is none': /^BAD_OPTION replicate: the group is 'dp'; give a process group/,
  'a step and an evaluation': /^NO_AGREEMENT step: the call is an evaluation on rank 1 and a step on rank 0; replicas/,
  'a step without the sum': /^NO_AGREEMENT step: the call is a step on rank 1 and a step, sync: false on rank 0/,
  'frozen later': /^NO_AGREEMENT step: the parameter '2.bias' is frozen on rank 1 and learned on rank 0/,
  'frozen later, and slow to compare':
    /^NO_AGREEMENT step: the parameter '2.bias' is frozen on rank 1 and learned on rank 0/,
  'divided by other numbers': /^NO_AGREEMENT step: the call is a step, divisor: 8 on rank 1 and a step, divisor: 16 on/,
  'clipped otherwise':
    /^NO_AGREEMENT step: what gradients were clipped by .* is clipGradNorm_ with maxNorm 1, normType 2/,
};

function check(names: readonly string[], [first, second]: readonly string[][]): void {
  names.forEach((name, i) => {
    expect(first?.[i]).toMatch(expected[name] as RegExp);
    expect(second?.[i]).toMatch(expected[name] as RegExp);
    if (!own.test(name)) expect(second?.[i]).toBe(first?.[i]);
  });
}

test('every scenario is there', () => {
  expect([...Object.keys(scenarios), ...Object.keys(ends)]).toEqual(Object.keys(expected));
});

test('before anything is on its way, on threads and on processes: the groups can be used on', async () => {
  const names = Object.keys(scenarios);
  check(names, await casesOnThreads(program, 2, names));
  check(names, await casesOnProcesses(program, 2, names));
});

test.each(Object.keys(ends))('%s: the run ends on both ranks', async (name) => {
  check([name], await casesOnThreads(program, 2, [name]));
});

test('a step and an evaluation on processes, where gloo would end the program', async () => {
  const names = ['a step and an evaluation'];
  check(names, await casesOnProcesses(program, 2, names));
});
