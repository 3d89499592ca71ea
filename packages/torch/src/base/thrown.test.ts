/** @file What was thrown, whatever it is. */
import { expect, test } from 'vitest';
import { firstCause, packThrown } from './thrown.ts';

const spoilt = (name: string): Error =>
  Object.defineProperty(new RangeError('fine'), name, {
    get() {
      throw new Error('a getter');
    },
  });

test.each([
  [new RangeError('too many'), 'RangeError', 'too many'],
  ['a text', 'Error', 'a text'],
  [undefined, 'Error', 'undefined'],
  [Symbol('x'), 'Error', 'Symbol(x)'],
  [{ reason: 'full', left: 3 }, 'Error', "{ reason: 'full', left: 3 }"],
  [Object.create(null), 'Error', 'something that cannot be shown was thrown'],
  [spoilt('message'), 'RangeError', 'an error whose message cannot be read'],
  [spoilt('name'), 'Error', 'fine'],
  [spoilt('stack'), 'RangeError', 'fine'],
  [spoilt('code'), 'RangeError', 'fine'],
  [Object.assign(new Error('x'), { message: 3 }), 'Error', 'an error whose message cannot be read'],
  [
    new Proxy(new Error('hidden'), {
      get() {
        throw new Error('a trap');
      },
      getPrototypeOf() {
        throw new Error('a trap');
      },
    }),
    'Error',
    'something that cannot be shown was thrown',
  ],
])('%#', (thrown, name, message) => expect(packThrown(thrown)).toMatchObject({ name, message }));

test('the first cause, also of chains that lead back', () => {
  const first = new Error('first');
  expect(firstCause(new Error('second', { cause: new Error('then', { cause: first }) }))).toBe(first);
  const own = new Error('own');
  own.cause = own;
  expect(firstCause(own)).toBe(own);
  const other = new Error('other', { cause: own });
  own.cause = other;
  expect(firstCause(own)).toBe(other);
  expect(firstCause('text')).toBe('text');
});
