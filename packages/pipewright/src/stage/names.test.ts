/** @file Names of the whole model. */
import { nn } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { wholeName } from './names.ts';
import { PipelineStage } from './pipeline-stage.ts';

test('the longest beginning counts, at dots only', () => {
  const names = { blocks: 'layers', 'blocks.0': 'layers.4', norm: '', 'blocks.0.head': 'head' };
  expect(
    ['blocks.0.weight', 'blocks.00.weight', 'blocks.0.head.bias', 'norm.weight', 'blocks', 'other.blocks.0'].map(
      (name) => wholeName(names, name),
    ),
  ).toEqual(['layers.4.weight', 'layers.00.weight', 'head.bias', 'weight', 'layers', 'other.blocks.0']);
  expect(wholeName({ '': 'stages.1' }, 'weight')).toBe('stages.1.weight');
  expect(wholeName(undefined, 'weight')).toBe('weight');
  expect(wholeName((name) => name.toUpperCase(), 'w')).toBe('W');
});

test('what is neither a table nor a function is refused', () => {
  const make = (names: unknown): PipelineStage =>
    new PipelineStage(new nn.Linear(1, 1), 0, 1, { names: names as never });
  expect(() => make(['a'])).toThrow("PipelineStage 0: names is an array of 1; give a table such as { 'blocks.0'");
  expect(() => make({ a: 1 })).toThrow('names is an object with a');
  expect(() => make(() => '').wholeName('weight')).toThrow("the function gave '' for 'weight'; return a name");
  expect(make({ weight: 'fc.w' }).wholeName('weight')).toBe('fc.w');
});
