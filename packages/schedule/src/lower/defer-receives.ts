/**
 * @file PyTorch's way to post receives late: each right before the compute that uses it, except that the lower rank of two
 * posts what it has to receive from the other before it sends to it, so that the two do not wait for each other.
 */

import { Code, isMessage, isSendCode, wordCode } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { Peer, StageGraph } from '../model/stage-graph.ts';

/** The rows of a schedule lowered as PyTorch does, its receives put off. */
export function deferReceives(schedule: Schedule): Int32Array[] {
  const graph = new StageGraph(schedule);
  const inputs = graph.peers('inputs');
  const outputs = graph.peers('outputs');
  const { layout, composites } = schedule;
  const peerRank = (word: number): number => {
    const code = wordCode(word);
    const peer = (code === Code.SendF || code === Code.RecvB ? outputs : inputs)[layout.stage(word)]!;
    return peer === Peer.None ? -1 : graph.rankOf[peer]!;
  };
  return schedule.rows.map((row, rank) => {
    const out: number[] = [];
    const deferred = new Set<number>();
    const post = (word: number): void => {
      if (deferred.delete(word)) out.push(word);
    };
    for (const word of row) {
      const isSend = isSendCode(wordCode(word));
      if (isMessage(word) && !isSend) {
        deferred.add(word);
        continue;
      }
      const peer = isSend ? peerRank(word) : -1;
      if (rank < peer) for (const receive of [...deferred]) if (peerRank(receive) === peer) post(receive);
      for (const leaf of composites.leavesOf(word)) {
        const code = wordCode(leaf);
        const receive = code === Code.F ? Code.RecvF : code === Code.I || code === Code.B ? Code.RecvB : -1;
        if (receive >= 0) post(layout.pack(receive, layout.stage(leaf), layout.microbatch(leaf)));
      }
      out.push(word);
    }
    return Int32Array.from([...out, ...deferred]);
  });
}
