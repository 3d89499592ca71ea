/** @file Starting ranks, and knowing where each one is. */
export { formatDigest } from '../status/digest.ts';
export { formatPlace, type RankPlace } from '../status/place.ts';
export { type Place, RankStatus, rankStatus, reportPlace } from '../status/rank-status.ts';
export { type Launched, launch } from './launch.ts';
export type { LaunchOptions } from './launch-options.ts';
export { LaunchError, type RankFailure } from './ranks/rank-failure.ts';
export type { LineSink, OutputStream } from './ranks/rank-output.ts';
export { isRank, runRank } from './ranks/run-rank.ts';
export { formatRecovery, type LostRank, type Recovery } from './replacement/recovery.ts';
export { formatRestart, type Restart } from './restart.ts';
