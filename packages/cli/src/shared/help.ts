/** @file What help pages have in common. */

/** The examples of a help page, each with a note on what it shows. */
export function helpExamples(lines: readonly (readonly [command: string, note: string])[]): string {
  const width = Math.max(...lines.map(([command]) => command.length));
  const text = lines.map(
    ([command, note]) => `  pipewright ${note === '' ? command : `${command.padEnd(width)}  ${note}`}`,
  );
  return `\nExamples:\n${text.join('\n')}`;
}
