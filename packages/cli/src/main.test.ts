import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, folder } from '../testing/run-cli.ts';

const help = (command: string): string => cli(`${command} --help`).out;

describe('help', () => {
  test('of the program names every command', () => {
    const { code, out } = cli('--help');
    expect(code).toBe(0);
    const commands = [...out.matchAll(/^ {2}(\w+) /gm)].map((match) => match[1]);
    expect(commands).toEqual(expect.arrayContaining(['schedule', 'simulate', 'compare', 'check', 'doctor', 'setup']));
  });

  test('schedule', () =>
    expect(help('schedule')).toMatchInlineSnapshot(`
      "Usage: pipewright schedule [options] [name]

      build a schedule by name, or read one from a file, and print or draw it

      Arguments:
        name                        name of a schedule, or a .csv or .json file, or -
                                    for standard input

      Options:
        -p, --ranks <n>             number of ranks
        -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 for
                                    schedules that need several)
        -m, --microbatches <n>      number of microbatches
        --compat <system>           exactly that system's order, its bugs included
                                    (choices: "torch")
        --memory-limit <amount>     activation memory per rank, without parameters, in
                                    the unit of --activation: one number, or one per
                                    rank: 4,4,3,3; ZB1P, ZB2P and AdaptiveV search for
                                    an order that keeps to it
        --lower                     add sends, receives, unsharding and gradient
                                    reduction
        --merge                     merge neighbouring I and W into B first
        --header                    start CSV with a line that gives the name of the
                                    schedule and its shape (PyTorch does not read it)
        --list                      list all schedules
        -f, --format <format>       what to write (default: by the name of --out, else
                                    table) (choices: "table", "timeline", "csv",
                                    "json", "svg", "trace")
        --F <time>                  forward (default 1); a number, or one per stage:
                                    1,1,2,1
        --I <time>                  input half of the backward (default 1)
        --W <time>                  weight half of the backward (default 1)
        --B <time>                  full backward (default I + W)
        --comm <time>               a message between ranks (default 0)
        --overlap <time>            an overlapped pair (default: the sum of its parts)
        --activation <amount>       memory of a microbatch on a stage (default 1)
        --retained <share>          share of it kept from I until W (default 0.5)
        --weight-gradient <amount>  memory of a stage's weight gradient (default 0)
        --parameters <amount>       memory of a stage's parameters (default 0)
        --costs <file>              costs as JSON, with everything the simulator
                                    knows: { "F": 1, "comm": { "bytes": 1e6,
                                    "bandwidth": 1e9 } }
        -o, --out <file>            write to a file instead of standard output
        --color                     use colours even if the output is not a terminal
        --no-color                  do not use colours
        --width <n>                 characters per line, or pixels of an SVG picture
        -h, --help                  display help for command

      Examples:
        pipewright schedule --list                                                 all schedules
        pipewright schedule 1F1B -p 4 -m 8                                         as a table
        pipewright schedule zbv -p 4 -m 8 -f timeline                              as a picture to scale
        pipewright schedule DualPipeV -p 4 -m 10 --lower -o dualpipe.csv           with sends and receives, as PyTorch reads it
        pipewright schedule Interleaved1F1B -p 4 -s 2 -m 8 --comm 0.2 -o step.svg  drawn with slow messages
        pipewright schedule mine.csv -f trace -o trace.json                        for ui.perfetto.dev
      "
    `));
  test('simulate', () =>
    expect(help('simulate')).toMatchInlineSnapshot(`
      "Usage: pipewright simulate [options] <name>

      simulate a step with given costs: time, bubble, communication, memory, critical
      path

      Arguments:
        name                        name of a schedule, or a .csv or .json file, or -
                                    for standard input

      Options:
        -p, --ranks <n>             number of ranks
        -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 for
                                    schedules that need several)
        -m, --microbatches <n>      number of microbatches
        --compat <system>           exactly that system's order, its bugs included
                                    (choices: "torch")
        --memory-limit <amount>     activation memory per rank, without parameters, in
                                    the unit of --activation: one number, or one per
                                    rank: 4,4,3,3; ZB1P, ZB2P and AdaptiveV search for
                                    an order that keeps to it
        --lower                     simulate sends and receives as actions of their
                                    own
        -f, --format <format>       what to write (default: by the name of --out, else
                                    text) (choices: "text", "json", "timeline", "svg",
                                    "trace")
        --F <time>                  forward (default 1); a number, or one per stage:
                                    1,1,2,1
        --I <time>                  input half of the backward (default 1)
        --W <time>                  weight half of the backward (default 1)
        --B <time>                  full backward (default I + W)
        --comm <time>               a message between ranks (default 0)
        --overlap <time>            an overlapped pair (default: the sum of its parts)
        --activation <amount>       memory of a microbatch on a stage (default 1)
        --retained <share>          share of it kept from I until W (default 0.5)
        --weight-gradient <amount>  memory of a stage's weight gradient (default 0)
        --parameters <amount>       memory of a stage's parameters (default 0)
        --costs <file>              costs as JSON, with everything the simulator
                                    knows: { "F": 1, "comm": { "bytes": 1e6,
                                    "bandwidth": 1e9 } }
        -o, --out <file>            write to a file instead of standard output
        --color                     use colours even if the output is not a terminal
        --no-color                  do not use colours
        --width <n>                 characters per line, or pixels of an SVG picture
        -h, --help                  display help for command

      Examples:
        pipewright simulate 1F1B -p 4 -m 8 --F 1 --B 2
        pipewright simulate ZB1P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6
        pipewright simulate 1F1B -p 4 -m 8 --F 1,1,1,2                            a slower last stage
        pipewright simulate mine.csv --costs costs.json -f json
        pipewright schedule gpipe -p 4 -m 8 -f json | pipewright simulate -       from standard input
      "
    `));
  test('compare', () =>
    expect(help('compare')).toMatchInlineSnapshot(`
      "Usage: pipewright compare [options] [names...]

      compare schedules on the same work: makespan, bubble, peak memory; the best
      values are marked

      Arguments:
        names                       names of schedules, NAME:STAGES_PER_RANK, or files
                                    (default: all that support the shape)

      Options:
        -p, --ranks <n>             number of ranks
        -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 for
                                    schedules that need several)
        -m, --microbatches <n>      number of microbatches
        --compat <system>           exactly that system's order, its bugs included
                                    (choices: "torch")
        --memory-limit <amount>     activation memory per rank, without parameters, in
                                    the unit of --activation: one number, or one per
                                    rank: 4,4,3,3; ZB1P, ZB2P and AdaptiveV search for
                                    an order that keeps to it
        --all-ranks                 show every rank even if there are more than 16
        -f, --format <format>       what to write (choices: "text", "json", default:
                                    "text")
        --F <time>                  forward (default 1); a number, or one per stage:
                                    1,1,2,1
        --I <time>                  input half of the backward (default 1)
        --W <time>                  weight half of the backward (default 1)
        --B <time>                  full backward (default I + W)
        --comm <time>               a message between ranks (default 0)
        --overlap <time>            an overlapped pair (default: the sum of its parts)
        --activation <amount>       memory of a microbatch on a stage (default 1)
        --retained <share>          share of it kept from I until W (default 0.5)
        --weight-gradient <amount>  memory of a stage's weight gradient (default 0)
        --parameters <amount>       memory of a stage's parameters (default 0)
        --costs <file>              costs as JSON, with everything the simulator
                                    knows: { "F": 1, "comm": { "bytes": 1e6,
                                    "bandwidth": 1e9 } }
        -o, --out <file>            write to a file instead of standard output
        --color                     use colours even if the output is not a terminal
        --no-color                  do not use colours
        --width <n>                 characters per line, or pixels of an SVG picture
        -h, --help                  display help for command

      Costs are those of everything one rank holds. They are divided evenly among its stages, so that every
      schedule does the same work. Schedules above --memory-limit, which is for activations and not for parameters, are
      marked and cannot be the best.

      Examples:
        pipewright compare -p 4 -m 8                                                          all schedules
        pipewright compare 1F1B Interleaved1F1B:2 Interleaved1F1B:4 ZBV -p 8 -m 32
        pipewright compare ZB1P ZB2P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6 -f json
      "
    `));
  test('check', () =>
    expect(help('check')).toMatchInlineSnapshot(`
      "Usage: pipewright check [options] <file>

      check a schedule against every rule, deadlocks included; exit code 1 if a rule
      is broken

      Arguments:
        file                    a .csv or .json file, or - for standard input

      Options:
        --stages <n>            number of stages to expect, if the file does not say
        -m, --microbatches <n>  number of microbatches to expect, if the file does not
                                say
        --limit <n>             the most violations to report (default 100)
        -f, --format <format>   what to write (choices: "text", "json", default:
                                "text")
        -o, --out <file>        write to a file instead of standard output
        --color                 use colours even if the output is not a terminal
        --no-color              do not use colours
        -h, --help              display help for command

      Examples:
        pipewright check mine.csv
        pipewright check exported.csv --stages 8 -m 16                          counts that a file without a header cannot give
        pipewright schedule 1F1B -p 4 -m 8 --lower -f csv | pipewright check -
      "
    `));

  test('loads no work: what registers a command imports flags and types only', () => {
    const source = (path: string): string => readFileSync(new URL(path, import.meta.url), 'utf8');
    const commands = readdirSync(new URL('commands/', import.meta.url));
    expect(commands).toContain('schedule');
    for (const path of [
      ...commands.map((name) => `commands/${name}/command.ts`),
      'shared/flags.ts',
      'shared/help.ts',
    ]) {
      const loaded = [...source(path).matchAll(/^import (?!type\b).* from '(.+)';$/gm)].map((match) => match[1]);
      for (const name of loaded) expect(['commander', '../../shared/flags.ts', '../../shared/help.ts']).toContain(name);
    }
  });

  test('every example of the help runs', () => {
    writeFileSync(join(folder, 'costs.json'), '{ "F": 1, "I": 1, "W": 1, "comm": 0.1 }');
    expect(cli('schedule 1F1B -p 4 -m 8 --lower -o mine.csv').code).toBe(0);
    expect(cli('schedule Interleaved1F1B -p 4 -m 16 --lower -o exported.csv').code).toBe(0);
    const lines = ['schedule', 'simulate', 'compare', 'check'].flatMap((command) =>
      [...help(command).matchAll(/^ {2}pipewright (.*?)(?: {2}.*)?$/gm)].map((match) => match[1]!),
    );
    expect(lines.length).toBeGreaterThan(12);
    for (const line of lines) {
      let input = '';
      for (const part of line.split(' | ')) {
        const { code, out, err } = cli(part.replace(/^pipewright /, ''), input);
        expect(code, `${part}\n${err}`).toBe(0);
        input = out;
      }
    }
  });
});
