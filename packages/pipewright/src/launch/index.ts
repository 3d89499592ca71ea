/** @file Starting ranks, and knowing where each one is. */
export { formatDigest } from './digest.ts';
export { type Launched, launch } from './launch.ts';
export type { LaunchOptions } from './launch-options.ts';
export { LaunchError, type RankFailure } from './rank-failure.ts';
export type { LineSink, OutputStream } from './rank-output.ts';
export { formatPlace, type RankPlace } from './rank-place.ts';
export { type Place, RankStatus, rankStatus, reportPlace } from './rank-status.ts';
export { isRank, runRank } from './run-rank.ts';
