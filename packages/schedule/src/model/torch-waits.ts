/**
 * @file Where PyTorch 2.15 waits for what it started: cells of its CSV files that are no actions here, as a runtime of ours
 * reaps what it sent by itself.
 *
 * A forward's send is waited for right behind the backward of the same stage and microbatch, which proves that the other side
 * has used it; all other sends at the end of the row, in the order of sending; a reduction right behind itself (PyTorch may post a
 * receive in between).
 */

import { Code, isSendCode, wordCode } from './packed.ts';
import type { Schedule } from './schedule.ts';

/** The texts of each row with PyTorch's waits between them. */
export function rowsWithTorchWaits(schedule: Schedule): string[][] {
  const { layout, composites } = schedule;
  return schedule.rows.map((row) => {
    const texts: string[] = [];
    const pending = new Map<number, string>();
    for (const word of row) {
      texts.push(schedule.format(word));
      const code = wordCode(word);
      const text = texts[texts.length - 1]!;
      if (isSendCode(code)) pending.set(word, text.replace('SEND', 'WAIT_SEND'));
      if (code === Code.ReduceGrad) texts.push(text.replace('REDUCE', 'WAIT_REDUCE'));
      for (const leaf of composites.leavesOf(word)) {
        if (wordCode(leaf) !== Code.B && wordCode(leaf) !== Code.I) continue;
        const send = layout.pack(Code.SendF, layout.stage(leaf), layout.microbatch(leaf));
        const wait = pending.get(send);
        if (wait === undefined) continue;
        texts.push(wait);
        pending.delete(send);
      }
    }
    return [...texts, ...pending.values()];
  });
}
