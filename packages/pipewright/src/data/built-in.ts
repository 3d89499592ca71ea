/** @file Where worker threads find the datasets of this folder. */
import { compiledUrl } from '../base/module-url.ts';

/** The module that makes them. */
export const builtInModule: URL = compiledUrl('built-in-datasets', import.meta.url);
