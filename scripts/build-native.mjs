// @ts-check
/** @file Builds libtorch's addon after an edit of native/*.cc: `node scripts/build-native.mjs`. Only what changed is compiled. */
import { bootstrap } from './bootstrap.mjs';

await bootstrap({ typeErrors: 'pass' });
