/**
 * @file Generations of the ranks of a job. After a loss the ranks connect anew, as the next generation; whoever started them writes
 * its number into a file that they have mapped, which ends all waits that began before.
 */
import { checkText, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { dist } from './native.ts';

/** Maps the file in which the number of the next generation is written, as a 32-bit word. @example watchGenerations(file, 0) */
export function watchGenerations(file: string, word: number): void {
  checkText('watchGenerations', 'the file', file);
  checkNumber('watchGenerations: the word', word);
  dist.watchGenerations(file, word);
}

/** Waits that begin from now on belong to this generation. @example setGeneration(1) */
export function setGeneration(number: number): void {
  checkNumber('setGeneration: the generation', number);
  dist.setGeneration(number);
}

function checkNumber(what: string, value: number): void {
  if (Number.isInteger(value) && value >= 0 && value < 2 ** 31) return;
  throw new TorchError('BAD_ARGUMENT', `${what} is ${show(value)}; give a whole number, at least 0`);
}
