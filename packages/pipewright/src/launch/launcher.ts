/** @file What a program needs that only starts ranks: the engine is not loaded here. */
export { formatDigest } from './digest.ts';
export { type Launched, launch } from './launch.ts';
export type { LaunchOptions } from './launch-options.ts';
export { LaunchError, type RankFailure } from './rank-failure.ts';
export type { LineSink, OutputStream } from './rank-output.ts';
export type { RankPlace } from './rank-place.ts';
export { isRank, runRank } from './run-rank.ts';
