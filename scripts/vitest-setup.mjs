// @ts-check
/** @file Before any test: the TypeScript build is current, because tests that start processes and workers start what is in dist. */
import { bootstrap } from './bootstrap.mjs';

export async function setup() {
  await bootstrap({ engine: false, typeErrors: 'pass' });
}
