#!/usr/bin/env node
/** @file The command `pipewright`; all of it is in the package of the command line. */
import '@pipewright/cli/bin';
