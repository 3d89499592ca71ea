/** @file What goes through JSON unchanged, and what is refused. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { toJson } from './json.ts';

test('JSON values come back equal', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      const json = JSON.stringify(value);
      if (/[^0-9.]-0[^.0-9]|^-0$/.test(json) || Object.is(value, -0)) return;
      try {
        expect(JSON.parse(toJson('test', value))).toEqual(value);
      } catch (error) {
        expect((error as Error).message).toContain('-0');
      }
    }),
  );
});

const loop: { self?: unknown } = {};
loop.self = loop;

test.each([
  [undefined, 'value is a undefined'],
  [{ a: [1, () => 1] }, 'value.a[1] is a function'],
  [[1n], 'value[0] is a bigint'],
  [{ x: Number.NaN }, 'value.x is NaN'],
  [{ x: Number.POSITIVE_INFINITY }, 'value.x is Infinity'],
  [new Map(), 'value is a Map'],
  [{ when: new Date() }, 'value.when is a Date'],
  [loop, 'value.self is part of a cycle'],
])('%s is refused', (value, message) => {
  expect(() => toJson('sendObject', value)).toThrow(`sendObject: ${message}`);
});
