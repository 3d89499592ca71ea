/** @file The launcher of one of several machines; options come as JSON. For tests. */
import { launch } from '../../dist/launch/launcher.js';

await launch({ ...JSON.parse(process.argv[2] ?? ''), script: new URL('./scenarios.ts', import.meta.url) }).done;
