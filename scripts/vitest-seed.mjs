// @ts-check
/**
 * @file Random inputs of tests begin with one seed, so that a run can be repeated and a failure belongs to a change.
 * PIPEWRIGHT_SEED chooses another one (`random` for a new one each time): run the tests so from time to time.
 */
import fc from 'fast-check';

const chosen = process.env['PIPEWRIGHT_SEED'] ?? '20261115';
if (chosen !== 'random') fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: Number(chosen) });
