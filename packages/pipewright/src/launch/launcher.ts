/** @file The entry point for programs that only start ranks: it does not load the engine. */
export { formatDigest } from '../status/digest.ts';
export type { RankPlace } from '../status/place.ts';
export { type Launched, launch } from './launch.ts';
export type { LaunchOptions } from './launch-options.ts';
export { LaunchError, type RankFailure } from './ranks/rank-failure.ts';
export type { LineSink, OutputStream } from './ranks/rank-output.ts';
export { isRank, runRank } from './ranks/run-rank.ts';
export { allowTypeScript } from './ranks/typescript.ts';
export { formatRecovery, type LostRank, type Recovery } from './replacement/recovery.ts';
export { formatRestart, type Restart } from './restart.ts';
