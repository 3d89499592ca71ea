/** @file Who waits for whom: one message from the places of all ranks. */
import { checkArgument } from '../base/checks.ts';
import { formatPlace, type RankPlace } from './place.ts';

/**
 * All ranks in one line, each chain of waits from its beginning to the rank that keeps the others waiting.
 *
 * @example formatDigest(places) // 'rank 0 waits at slot 3 (0RECV_B0) for rank 1; rank 1 is stopped at slot 2 (1F0). Look at rank 1 first'
 */
export function formatDigest(places: readonly RankPlace[]): string {
  const isPlaces =
    Array.isArray(places) && Array.from(places).every((place) => typeof place === 'object' && place !== null);
  checkArgument('formatDigest', isPlaces, ['the argument', places], 'an array of places');
  const byRank = new Map(places.map((place) => [place.rank, place]));
  const awaited = new Set(places.map(({ waitingFor }) => waitingFor));
  const order: RankPlace[] = [];
  const follow = (place: RankPlace | undefined): void => {
    if (place === undefined || order.includes(place)) return;
    order.push(place);
    if (typeof place.waitingFor === 'number') follow(byRank.get(place.waitingFor));
  };
  for (const place of places) if (!awaited.has(place.rank)) follow(place);
  // What is left waits in a cycle.
  for (const place of places) follow(place);
  return `${order.map(formatPlace).join('; ')}${conclusion(byRank)}`;
}

/** The rank that failed or is stopped, the one at the end of the chains of waits, or those that wait in a cycle. */
function conclusion(byRank: ReadonlyMap<number, RankPlace>): string {
  const broken = [...byRank.values()].filter(({ state }) => state === 'failed' || state === 'stopped');
  // Places are read one after the other, so there may seem to be a cycle; here there is a better reason.
  if (broken.length > 0) return broken.length === 1 ? `. Look at rank ${broken[0]?.rank} first` : '';
  const waiting = [...byRank.values()].filter(({ state }) => state === 'waiting');
  const ends = new Set<number>();
  for (const start of waiting) {
    const chain: number[] = [];
    let place: RankPlace | undefined = start;
    while (place?.state === 'waiting' && typeof place.waitingFor === 'number' && !chain.includes(place.rank)) {
      chain.push(place.rank);
      place = byRank.get(place.waitingFor);
    }
    if (place !== undefined && chain.includes(place.rank)) {
      const cycle = chain.slice(chain.indexOf(place.rank));
      return `. They wait in a cycle: rank ${[...cycle, place.rank].join(' for rank ')}`;
    }
    if (place !== undefined && place.state !== 'waiting') ends.add(place.rank);
  }
  return ends.size === 1 ? `. Look at rank ${[...ends][0]} first` : '';
}
