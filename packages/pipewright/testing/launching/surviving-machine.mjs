// @ts-check
/** @file The launcher of one of several machines whose ranks run `ranks/surviving.mjs`; prints as JSON how it went. For tests. */
import { launch } from '../../dist/index.js';

const script = new URL('../ranks/surviving.mjs', import.meta.url);
const launched = launch({ ...JSON.parse(process.argv[2] ?? ''), script, threadsPerRank: 1, onLine: () => undefined });
const results = await launched.done;
console.log(JSON.stringify({ results, recoveries: launched.recoveries(), restarts: launched.restarts() }));
