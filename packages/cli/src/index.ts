/** @file The command line as a library: the program, and running it. */
export { createProgram, main } from './main.ts';
