/** @file The command `pipewright`: importing it runs it; it exports nothing. */
export {};
