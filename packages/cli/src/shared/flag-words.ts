/** @file Messages of the library in the words of the command line. */

/** What the library's messages begin with: names that a user of the command line has not written. */
const callers = /(^|: )(?:buildSchedule|parseCsv|Schedule\.from(?:JSON)?|cutBalanced|splitSpec|planPipeline): /;

/** Options of the library as the flags that set them. */
const flags: Readonly<Record<string, string>> = {
  stagesPerRank: '--stages-per-rank',
  memoryLimit: '--memory-limit',
  'costs.activation': '--activation',
};

/** A message of the library for users of the command line: no function names, flags instead of options. */
export function inFlagWords(message: string): string {
  return message
    .replace(callers, '$1')
    .replace(/\b(?:stagesPerRank|memoryLimit|costs\.activation)\b/g, (option) => flags[option]!);
}
