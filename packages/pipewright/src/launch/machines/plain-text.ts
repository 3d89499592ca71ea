/** @file Text from another machine, made safe for this one's terminal. */

const [ESCAPE, BELL] = [27, 7].map((code) => String.fromCharCode(code)) as [string, string];

/** Commands to a terminal: those with parameters, those with a text, and all others. */
const commands = new RegExp(
  [
    String.raw`${ESCAPE}\[[0-?]*[ -\/]*[@-~]`,
    String.raw`${ESCAPE}[\]PX^_][^${BELL}${ESCAPE}]*(?:${BELL}|${ESCAPE}\\)?`,
    String.raw`${ESCAPE}[ -~]?`,
  ].join('|'),
  'gu',
);
/** Other characters that are not shown, and those that turn the direction of writing; not ends of lines and tabs. */
const hidden = /(?![\n\t])[\p{Cc}\p{Bidi_Control}]/gu;

/** The text without commands to the terminal, at most `longest` characters. @example plainText('\u001b[31mred', 100) // 'red' */
export function plainText(text: string, longest: number): string {
  const plain = text
    .slice(0, 4 * longest)
    .replaceAll(commands, '')
    .replaceAll(hidden, '');
  return plain.length > longest ? `${plain.slice(0, longest)}…` : plain;
}
