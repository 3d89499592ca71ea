import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type Action,
  action,
  actionKinds,
  actionsEqual,
  formatAction,
  isComputeOp,
  overlap,
  parseAction,
  parseComputationType,
  profilerRangeName,
} from './action.ts';
import { ScheduleError } from './errors.ts';

interface GoldenAction {
  readonly stage: number;
  readonly type: string;
  readonly mb: number | null;
  readonly text: string;
  readonly sub: string[] | null;
}

const passes = JSON.parse(readFileSync(new URL('../../../../testdata/passes.json', import.meta.url), 'utf8')) as {
  parse: [string, GoldenAction | null | { error: true }][];
};

/** What went wrong, or undefined. */
function errorOf(run: () => unknown): ScheduleError | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    expect(error).toBeInstanceOf(ScheduleError);
    return error as ScheduleError;
  }
}

const plainAction: fc.Arbitrary<Action> = fc
  .tuple(fc.constantFrom(...actionKinds.filter((kind) => kind !== 'OVERLAP_F_B')), fc.nat(), fc.nat(), fc.boolean())
  .map(([kind, stage, microbatch, bare]) => action(kind, stage, bare && /SHARD|REDUCE/.test(kind) ? null : microbatch));
const anyAction: fc.Arbitrary<Action> = fc.letrec<{ tree: Action; list: Action[] }>((tie) => ({
  tree: fc.oneof(
    { depthSize: 'small' },
    plainAction,
    tie('list').map((parts) => overlap(parts)),
  ),
  list: fc.array(tie('tree'), { minLength: 1, maxLength: 3 }),
})).tree;

describe('parseAction', () => {
  test.each(passes.parse)('lenient %j as PyTorch reads it', (text, expected) => {
    if (expected !== null && 'error' in expected) {
      expect(errorOf(() => parseAction(text, { lenient: true }))?.code).toBe('BAD_ACTION');
      return;
    }
    const parsed = parseAction(text, { lenient: true });
    if (expected === null || parsed === null) {
      expect(parsed).toBe(expected);
      return;
    }
    expect({
      stage: parsed.stage,
      type: parsed.kind,
      mb: parsed.microbatch,
      text: formatAction(parsed),
      sub: parsed.parts?.map(formatAction) ?? null,
    }).toEqual(expected);
  });

  test('reads the notation', () => {
    expect(parseAction('2F0')).toEqual({ kind: 'F', stage: 2, microbatch: 0, parts: null });
    expect(parseAction(' 12B3 ')).toEqual({ kind: 'B', stage: 12, microbatch: 3, parts: null });
    expect(parseAction('1UNSHARD')).toEqual({ kind: 'UNSHARD', stage: 1, microbatch: null, parts: null });
    expect(parseAction('(0F3;3B1)OVERLAP_F_B')).toEqual({
      kind: 'OVERLAP_F_B',
      stage: -1,
      microbatch: null,
      parts: [action('F', 0, 3), action('B', 3, 1)],
    });
    expect(parseAction('')).toBeNull();
  });

  test.each(['( 0F0 ; 1B0 ) OVERLAP_F_B', '((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B', '00F01'])(
    'strict takes %j, a real grammar',
    (text) => {
      expect(parseAction(text)).not.toBeNull();
    },
  );

  test.each([
    '0F1junk',
    '0F1x2',
    '0F',
    '3SEND_F',
    '(0F0)F',
    '()OVERLAP_F_B',
    '(0F1;)OVERLAP_F_B',
    '(0F1;;3B2)OVERLAP_F_B',
    '(0F0;1B0',
    '(0F1)',
    '-1F0',
    'F0',
    '0X1',
    '0f0',
    '1OVERLAP_F_B',
    '1.5F0',
    '0F 1',
  ])('strict refuses %j', (text) => {
    expect(errorOf(() => parseAction(text))?.code).toBe('BAD_ACTION');
  });

  test('errors say what was found and what was expected', () => {
    const messages = ['0F1junk', '0F', '-1F0', '(0F0;1B0', '(0F0)F'].map(
      (text) => errorOf(() => parseAction(text))!.message,
    );
    expect(messages.join('\n')).toMatchInlineSnapshot(`
      "parseAction: cannot read '0F1junk': 'junk' follows the action; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'
      parseAction: cannot read '0F': 0F has no microbatch; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'
      parseAction: cannot read '-1F0': a stage cannot be negative; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'
      parseAction: cannot read '(0F0;1B0': a list of parts has no closing parenthesis; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'
      parseAction: cannot read '(0F0)F': a list of parts must be followed by OVERLAP_F_B; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'"
    `);
    expect(errorOf(() => parseComputationType('forward'))!.message).toMatchInlineSnapshot(
      `"parseComputationType: 'forward' is no kind of action; use one of F I W B UNSHARD RESHARD REDUCE_GRAD SEND_F RECV_F SEND_B RECV_B OVERLAP_F_B"`,
    );
    expect(errorOf(() => parseAction(7 as never))?.code).toBe('BAD_ACTION');
  });

  test('print and parse are inverse', () => {
    fc.assert(fc.property(anyAction, (item) => actionsEqual(parseAction(formatAction(item)), item)));
  });

  test('lenient and strict agree on what both read', () => {
    fc.assert(
      fc.property(plainAction, (item) => actionsEqual(parseAction(formatAction(item), { lenient: true }), item)),
    );
  });

  test('random text is read or refused, never anything else', () => {
    const text = fc.string({
      unit: fc.constantFrom('0', '1', 'F', 'B', 'SEND_F', '(', ')', ';', 'OVERLAP_F_B', ' ', 'x', 'UNSHARD'),
      maxLength: 8,
    });
    fc.assert(
      fc.property(text, fc.boolean(), (cell, lenient) => {
        const error = errorOf(() => parseAction(cell, { lenient }));
        if (error !== undefined) expect(error.code).toBe('BAD_ACTION');
      }),
    );
  });
});

describe('actions', () => {
  test('are frozen, compare by value and know whether they compute', () => {
    expect(Object.isFrozen(action('F', 0, 0))).toBe(true);
    expect(actionsEqual(action('F', 0, 1), action('F', 0, 2))).toBe(false);
    expect(actionsEqual(null, action('F', 0, 2))).toBe(false);
    expect(actionsEqual(overlap([action('F', 0, 1)]), overlap([action('F', 0, 1)]))).toBe(true);
    expect(actionKinds.filter(isComputeOp)).toEqual(['F', 'I', 'W', 'B', 'OVERLAP_F_B']);
    expect(isComputeOp(action('RECV_B', 0, 1))).toBe(false);
    expect(profilerRangeName(action('SEND_F', 3, 1))).toBe('PP:3SEND_F1');
  });
});
