/** @file Where ranks are: what is written can be read by another thread or process, and says who waits for whom. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fc, test } from '@fast-check/vitest';
import { describe, expect } from 'vitest';
import { processBoard, threadBoard } from './board.ts';
import { formatDigest } from './digest.ts';
import { RECORD_WORDS, TEXT_LENGTH } from './layout.ts';
import { formatPlace, type RankPlace, readPlace } from './place.ts';
import { RankStatus } from './rank-status.ts';

const place = (rank: number, more: Partial<RankPlace>): RankPlace => ({
  rank,
  state: more.waitingFor === undefined ? 'working' : 'waiting',
  step: undefined,
  slot: undefined,
  action: '',
  waitingFor: undefined,
  ...more,
});

describe('a record', () => {
  test.prop([
    fc.record({
      slot: fc.option(fc.nat({ max: 2 ** 30 }), { nil: undefined }),
      action: fc.string({ unit: 'grapheme-ascii', maxLength: 120 }),
      waitingFor: fc.option(fc.oneof(fc.nat({ max: 9999 }), fc.constant('all' as const)), { nil: undefined }),
      step: fc.nat({ max: 2 ** 30 }),
    }),
  ])('gives back what was set', (said) => {
    const board = threadBoard(3, 10);
    const words = new Int32Array(board.shared as SharedArrayBuffer).subarray(RECORD_WORDS, 2 * RECORD_WORDS);
    const status = new RankStatus(11, words);
    status.set({ action: 'something longer than what comes next, so that nothing of it may be left' });
    status.set(said);
    const [silent, seen] = board.places();
    expect(silent).toEqual(place(10, { state: 'silent' }));
    expect(seen).toEqual({
      ...said,
      rank: 11,
      state: said.waitingFor === undefined ? 'working' : 'waiting',
      action: said.action.slice(0, TEXT_LENGTH),
    });
    expect(status.get()).toEqual(seen);
  });

  test('keeps the step until another is given', () => {
    const status = new RankStatus(0, new Int32Array(RECORD_WORDS));
    status.set({ step: 4, slot: 0, action: '0F0' });
    status.set({ slot: 17, action: '3RECV_B1', waitingFor: 3 });
    expect(status.describe()).toBe('rank 0 waits in step 4 at slot 17 (3RECV_B1) for rank 3');
    status.set({ step: 0, evaluates: true, slot: 0, action: '0F0' });
    status.set({ slot: 1, action: '0F1' });
    expect(status.describe()).toBe('rank 0 works in evaluation 0 at slot 1 (0F1)');
    status.set({ step: 5, action: 'step begins' });
    expect(status.get()).toEqual(place(0, { step: 5, action: 'step begins' }));
  });

  test('that is being written is read again, but not for ever', () => {
    const words = new Int32Array(RECORD_WORDS);
    new RankStatus(0, words).set({ action: 'whole' });
    let reads = 0;
    const torn = Int32Array.from(words, (word, i) => (i === 0 ? word + 1 : word));
    expect(readPlace(0, () => (++reads < 4 ? torn : words)).action).toBe('whole');
    expect(readPlace(0, () => torn).action).toBe('whole');
  });
});

test('a process is seen by its launcher at once, also when it is stopped', async () => {
  const board = processBoard(2, 4);
  const child = spawn(process.execPath, [new URL('../../testing/launching/say-place.mjs', import.meta.url).pathname], {
    env: { ...process.env, RANK: '5', LOCAL_RANK: '1', PIPEWRIGHT_STATUS_FILE: board.shared as string },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  try {
    // It writes its place again and again, then says so, then goes on: no message could be sent by hand.
    const [output] = (await once(child.stdout!, 'data')) as [Buffer];
    expect(String(output)).toBe('ready\n');
    child.kill('SIGSTOP');
    const [silent, seen] = board.places();
    expect(silent!.state).toBe('silent');
    expect(seen).toMatchObject({ rank: 5, state: 'waiting', action: '1RECV_F0', waitingFor: 4 });
    expect(seen!.slot).toBeGreaterThan(0);
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
    board.close();
  }
});

describe('the digest', () => {
  test.each([
    [
      [
        place(0, { slot: 3, action: '0RECV_B0', waitingFor: 1 }),
        place(1, { slot: 9, action: '1RECV_B0', waitingFor: 2 }),
        place(2, { state: 'stopped', step: 7, slot: 2, action: '2F0' }),
      ],
      'rank 0 waits at slot 3 (0RECV_B0) for rank 1; rank 1 waits at slot 9 (1RECV_B0) for rank 2; rank 2 is stopped in step 7 at slot 2 (2F0). Look at rank 2 first',
    ],
    [
      [
        place(0, { slot: 3, action: '0RECV_B0', waitingFor: 1 }),
        place(1, { slot: 5, action: '1RECV_F2', waitingFor: 0 }),
        place(2, { slot: 1, action: '2RECV_F0', waitingFor: 1 }),
      ],
      'rank 2 waits at slot 1 (2RECV_F0) for rank 1; rank 1 waits at slot 5 (1RECV_F2) for rank 0; rank 0 waits at slot 3 (0RECV_B0) for rank 1. They wait in a cycle: rank 0 for rank 1 for rank 0',
    ],
    [
      [
        place(0, { action: 'barrier', waitingFor: 'all' }),
        place(1, { action: 'reading data' }),
        place(2, { state: 'done' }),
        place(3, { state: 'silent' }),
        place(4, { state: 'failed', slot: 8, action: '4B1' }),
      ],
      'rank 0 waits at: barrier for all others; rank 1 works at: reading data; rank 2 is done; rank 3 has not said where it is; rank 4 failed at slot 8 (4B1). Look at rank 4 first',
    ],
    [
      [
        place(0, { state: 'failed', slot: 8, action: '0B1' }),
        place(1, { slot: 3, action: '1RECV_B0', waitingFor: 2 }),
        place(2, { slot: 5, action: '2RECV_F2', waitingFor: 1 }),
      ],
      'rank 0 failed at slot 8 (0B1); rank 1 waits at slot 3 (1RECV_B0) for rank 2; rank 2 waits at slot 5 (2RECV_F2) for rank 1. Look at rank 0 first',
    ],
    [
      [place(0, { slot: 0, action: '0SEND_F0', waitingFor: 0 })],
      'rank 0 waits at slot 0 (0SEND_F0) for rank 0. They wait in a cycle: rank 0 for rank 0',
    ],
  ])('of %#', (places, text) => expect(formatDigest(places)).toBe(text));

  test.prop([
    fc.array(fc.option(fc.oneof(fc.nat({ max: 7 }), fc.constant('all' as const)), { nil: undefined }), {
      minLength: 1,
      maxLength: 8,
    }),
  ])('names every rank once, whatever the waits', (waits) => {
    const places = waits.map((waitingFor, rank) => place(rank, { slot: 1, action: 'x', waitingFor }));
    const text = formatDigest(places);
    for (const one of places) expect(text.split(formatPlace(one)).length).toBe(2);
  });
});
