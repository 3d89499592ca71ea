/** @file Starting ranks, and knowing where each one is. */
export { formatDigest } from './digest.ts';
export { formatPlace, type RankPlace } from './rank-place.ts';
export { type Place, RankStatus, rankStatus, reportPlace } from './rank-status.ts';
