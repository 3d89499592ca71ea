import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, test } from 'vitest';

const bin = fileURLToPath(new URL('../bin/pipewright.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'pipewright-cli-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const environment: NodeJS.ProcessEnv = { ...process.env, NO_COLOR: '', FORCE_COLOR: '', COLUMNS: '' };
for (const name of ['NO_COLOR', 'FORCE_COLOR', 'COLUMNS', 'PIPEWRIGHT_DEBUG']) delete environment[name];

interface Result {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

/** Runs the program as a user does. */
function run(args: readonly string[], input = '', env: NodeJS.ProcessEnv = environment): Result {
  const { status, stdout, stderr } = spawnSync(process.execPath, [bin, ...args], {
    cwd: folder,
    input,
    env,
    encoding: 'utf8',
  });
  return { code: status, out: stdout, err: stderr };
}

/** A command line as one types it; no quoting. */
const cli = (line: string, input = ''): Result => run(line.split(' '), input);

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

      build a schedule by name, or read one, and print or draw it

      Arguments:
        name                        name of a schedule, or a .csv or .json file, or -
                                    for standard input

      Options:
        -p, --ranks <n>             number of ranks
        -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 where a
                                    schedule is made for several)
        -m, --microbatches <n>      number of microbatches
        --compat <system>           exactly that system's order, its faults included
                                    (choices: "torch")
        --memory-limit <amount>     activation memory per rank, for schedules that
                                    search (one number, or one per rank: 4,4,3,3)
        --lower                     add sends, receives, unsharding and gradient
                                    reduction
        --merge                     join neighbouring I and W to B first
        --header                    begin CSV with a line that names the schedule and
                                    its numbers (PyTorch reads CSV without)
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
        --color                     colours even if the output is no terminal
        --no-color                  no colours
        --width <n>                 characters per line, or pixels of an SVG picture
        -h, --help                  display help for command

      Examples:
        pipewright schedule --list                                                 all schedules
        pipewright schedule 1F1B -p 4 -m 8                                         as a table
        pipewright schedule zbv -p 4 -m 8 -f timeline                              as a picture to scale
        pipewright schedule DualPipeV -p 4 -m 10 --lower -o dualpipe.csv           with sends and receives, for PyTorch or by hand
        pipewright schedule Interleaved1F1B -p 4 -s 2 -m 8 --comm 0.2 -o step.svg  drawn with slow messages
        pipewright schedule mine.csv -f trace -o trace.json                        for ui.perfetto.dev
      "
    `));
  test('simulate', () =>
    expect(help('simulate')).toMatchInlineSnapshot(`
    "Usage: pipewright simulate [options] <name>

    play a schedule with costs: time, idle share, communication, memory, critical
    path

    Arguments:
      name                        name of a schedule, or a .csv or .json file, or -
                                  for standard input

    Options:
      -p, --ranks <n>             number of ranks
      -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 where a
                                  schedule is made for several)
      -m, --microbatches <n>      number of microbatches
      --compat <system>           exactly that system's order, its faults included
                                  (choices: "torch")
      --memory-limit <amount>     activation memory per rank, for schedules that
                                  search (one number, or one per rank: 4,4,3,3)
      --lower                     play it with its sends and receives as actions of
                                  their own
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
      --color                     colours even if the output is no terminal
      --no-color                  no colours
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

    several schedules on the same work: makespan, idle shares, peak memory; the best
    is marked

    Arguments:
      names                       names of schedules, NAME:STAGES_PER_RANK, or
                                  files; none: all that can do the shape

    Options:
      -p, --ranks <n>             number of ranks
      -s, --stages-per-rank <n>   stages on each rank (default: 1, or 2 where a
                                  schedule is made for several)
      -m, --microbatches <n>      number of microbatches
      --compat <system>           exactly that system's order, its faults included
                                  (choices: "torch")
      --memory-limit <amount>     activation memory per rank, for schedules that
                                  search (one number, or one per rank: 4,4,3,3)
      --all-ranks                 show every rank, also of more than 16
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
      --color                     colours even if the output is no terminal
      --no-color                  no colours
      --width <n>                 characters per line, or pixels of an SVG picture
      -h, --help                  display help for command

    Costs are those of a rank's whole share of the model; they are dealt to its stages, so that every
    schedule does the same work.

    Examples:
      pipewright compare -p 4 -m 8                                                          all schedules
      pipewright compare 1F1B Interleaved1F1B:2 Interleaved1F1B:4 ZBV -p 8 -m 32
      pipewright compare ZB1P ZB2P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6 -f json
    "
  `));
  test('check', () =>
    expect(help('check')).toMatchInlineSnapshot(`
    "Usage: pipewright check [options] <file>

    check a schedule against every rule, deadlocks included; exit code 1 if one is
    broken

    Arguments:
      file                    a .csv or .json file, or - for standard input

    Options:
      --stages <n>            stages there must be, if the file does not say
      -m, --microbatches <n>  microbatches there must be, if the file does not say
      --limit <n>             the most violations to report (default 100)
      -f, --format <format>   what to write (choices: "text", "json", default:
                              "text")
      -o, --out <file>        write to a file instead of standard output
      --color                 colours even if the output is no terminal
      --no-color              no colours
      -h, --help              display help for command

    Examples:
      pipewright check mine.csv
      pipewright check exported.csv --stages 8 -m 16                          counts that a file without header cannot say
      pipewright schedule 1F1B -p 4 -m 8 --lower -f csv | pipewright check -
    "
  `));

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

describe('schedule', () => {
  test('prints a table, a picture, a file for PyTorch, JSON', () => {
    expect(cli('schedule 1f1b -p 2 -m 2').out).toMatchInlineSnapshot(`
      "        Rank 0 Rank 1
      Step 0: 0F0          
      Step 1: 0F1    1F0   
      Step 2:        1B0   
      Step 3: 0B0    1F1   
      Step 4:        1B1   
      Step 5: 0B1          
      "
    `);
    expect(cli('schedule gpipe -p 2 -m 2 -f timeline --width 60').out).toMatchInlineSnapshot(`
      "GPipe: 2 ranks, 2 stages, 2 microbatches
      makespan 9; bubble 33.3% of the makespan, 33.3% of the span; peak memory 2
      rank 0 │F0─F1─·········B0────B1────│ busy  66.7%  peak 2
      rank 1 │···F0─F1─B0────B1────······│ busy  66.7%  peak 2
              0              5
      F Forward   B Full backward   · idle
      "
    `);
    expect(cli('schedule gpipe -p 2 -m 1 --lower -f json').out).toMatchInlineSnapshot(`
      "{
        "format": "pipewright-schedule",
        "version": 1,
        "name": "GPipe",
        "ranks": 2,
        "stages": 2,
        "microbatches": 1,
        "stageToRank": [0,1],
        "order": [
          ["0UNSHARD","0F0","0SEND_F0","0RECV_B0","0B0","0REDUCE_GRAD","0RESHARD"],
          ["1UNSHARD","1RECV_F0","1F0","1B0","1SEND_B0","1REDUCE_GRAD","1RESHARD"]
        ]
      }
      "
    `);
    expect(cli('schedule gpipe --ranks 2 --microbatches 1 --compat torch -f csv').out).toMatchInlineSnapshot(`
      "0F0,0B0,0REDUCE_GRAD
      1F0,1B0,1REDUCE_GRAD
      "
    `);
  });

  test('writes CSV as PyTorch reads it, or with a header', () => {
    expect(cli('schedule gpipe -p 1 -m 1 -f csv').out).toBe('0F0,0B0\r\n');
    const { out } = cli('schedule ZBH1 -p 2 -m 2 -f csv --header');
    expect(out.split('\r\n')[0]).toBe(
      '#pipewright-schedule,version=1,name=ZBH1,ranks=2,stages=2,microbatches=2,stageToRank=0 1',
    );
    expect(cli('schedule - -f timeline', out).out).toMatch(/^ZBH1: 2 ranks/);
  });

  test('lists the schedules', () => {
    const { out } = cli('schedule --list');
    for (const name of ['GPipe', '1F1B', 'Interleaved1F1B', 'ZBVZeroBubble', 'DualPipeV']) expect(out).toContain(name);
  });

  test('reads what it wrote, in every format that can be read', () => {
    for (const format of ['csv', 'json']) {
      const { out } = cli(`schedule DualPipeV -p 2 -m 4 -f ${format}`);
      expect(cli(`schedule - -f ${format}`, out).out).toBe(out);
    }
  });

  test('picks the format by the name of the file', () => {
    const made = (file: string): string => {
      expect(cli(`schedule ZBV -p 2 -m 4 -o ${file}`)).toEqual({ code: 0, out: '', err: '' });
      return readFileSync(join(folder, file), 'utf8');
    };
    expect(made('a.svg')).toMatch(/^<svg /);
    expect(JSON.parse(made('a.json'))).toMatchObject({ ranks: 2, stages: 4 });
    expect(JSON.parse(made('a.trace.json'))).toHaveProperty('traceEvents');
    expect(made('a.csv')).toContain('0F0');
    expect(made('a.txt')).toMatch(/^ +Rank 0/);
    expect(cli('schedule ZBV -p 2 -m 4 -o a.png')).toMatchObject({
      code: 2,
      err: expect.stringContaining('does not say the format'),
    });
  });
});

describe('simulate', () => {
  test('says the numbers', () => {
    expect(cli('simulate 1F1B -p 4 -m 8 --F 1 --B 2').out).toMatchInlineSnapshot(`
      "1F1B: 4 ranks, 4 stages, 8 microbatches
      makespan       33
      span           33
      bubble         27.3% of the makespan, 27.3% of the span
      peak memory    4 on rank 0
      critical path  22 actions: 0F0 1F0 2F0 3F0 3B0 3F1 … 3F7 3B7 2B7 1B7 0B7; 33 of work, 0 waiting for messages

      rank        busy  idle  communication  waiting for it  peak memory
      0     24 (72.7%)     9              0               0            4
      1     24 (72.7%)     9              0               0            3
      2     24 (72.7%)     9              0               0            2
      3     24 (72.7%)     9              0               0            1
      "
    `);
  });

  test('takes costs per stage, from a file, and both', () => {
    const makespan = (line: string): number =>
      (JSON.parse(cli(`simulate 1F1B -p 4 -m 8 -f json ${line}`).out) as { makespan: number }).makespan;
    writeFileSync(join(folder, 'slow.json'), '{ "F": 2, "I": 2, "W": 2 }');
    expect(makespan('--F 1 --B 2')).toBe(33);
    expect(makespan('--costs slow.json')).toBe(66);
    expect(makespan('--costs slow.json --F 1 --I 1 --W 1')).toBe(33);
    expect(makespan('--F 1,1,1,2')).toBeGreaterThan(33);
    expect(makespan('--lower')).toBe(33);
  });
});

describe('compare', () => {
  test('marks the best', () => {
    expect(cli('compare 1F1B Interleaved1F1B:2 ZBV -p 4 -m 8').out).toMatchInlineSnapshot(`
      "4 ranks, 8 microbatches; * is the best of its column
      schedule           stages/rank  makespan   bubble/makespan   bubble/span   peak memory
      1F1B                         1        33             27.3%         27.3%             4*
      Interleaved1F1B:2            2      28.5             15.8%         15.8%           5.5
      ZBVZeroBubble                2      25.5*             5.9%*         0.0%*            4*

      busy share and peak memory per rank
      rank     1F1B  Interleaved1F1B:2  ZBVZeroBubble
      0     72.7% 4          84.2% 5.5        94.1% 4
      1     72.7% 3          84.2% 4.5        94.1% 4
      2     72.7% 2          84.2% 3.5        94.1% 4
      3     72.7% 1          84.2% 2.5        94.1% 4
      "
    `);
  });

  test('without names takes all schedules that can do the shape', () => {
    const { schedules, best } = JSON.parse(cli('compare -p 4 -m 8 -f json').out) as {
      schedules: { name: string; makespan: number; perRank: object[] }[];
      best: { makespan: string[] };
    };
    expect(schedules.find(({ name }) => name === 'GPipe')).toMatchObject({
      makespan: 33,
      stagesPerRank: 1,
      peakMemory: 8,
    });
    expect(schedules.find(({ name }) => name === 'Interleaved1F1B')).toMatchObject({ makespan: 28.5, peakMemory: 5.5 });
    expect(schedules.every(({ perRank }) => perRank.length === 4)).toBe(true);
    expect(best.makespan).toContain('ZBVZeroBubble');
  });

  test('shortens many ranks, unless asked not to', () => {
    expect(cli('compare 1F1B -p 40 -m 40').out).toContain('(32 ranks not shown; --all-ranks shows them)');
    expect(cli('compare 1F1B -p 40 -m 40 --all-ranks').out.match(/^\d+ /gm)).toHaveLength(41);
  });

  test('refuses costs per stage and odd numbers of stages', () => {
    expect(cli('compare 1F1B -p 4 -m 8 --F 1,1,1,1')).toMatchObject({
      code: 2,
      err: expect.stringContaining('one number per cost'),
    });
    expect(cli('compare 1F1B:x -p 4 -m 8')).toMatchObject({ code: 2, err: expect.stringContaining('after the colon') });
    expect(cli('compare 1F1B:3 -p 4 -m 8')).toMatchObject({
      code: 2,
      err: expect.stringContaining('1 stage per rank'),
    });
  });
});

describe('check', () => {
  test('accepts a legal schedule', () => {
    const { out } = cli('schedule DualPipeV -p 4 -m 10 --lower -f csv');
    expect(cli('check -', out)).toMatchInlineSnapshot(`
      {
        "code": 0,
        "err": "",
        "out": "ok -: 4 ranks, 8 stages, 10 microbatches, with communication
      ",
      }
    `);
  });

  test('lists violations with the place, exit code 1', () => {
    writeFileSync(join(folder, 'bad.csv'), '0F0,0B0,0F1,0B1\r\n1B0,1F0,1F1,1B1\r\n');
    const result = cli('check bad.csv');
    expect(result).toMatchInlineSnapshot(`
      {
        "code": 1,
        "err": "",
        "out": "1 violation in bad.csv: 2 ranks, 2 stages, 2 microbatches, compute only

        forward-first: rank 1 slot 0 (1B0): 1F0 is not before it; move the forward ahead

              Rank 0 Rank 1
      Step 0: 0F0    1B0    <-- rank 1: forward-first
      Step 1: 0B0    1F0   
      Step 2: 0F1    1F1   
      Step 3: 0B1    1B1
      ",
      }
    `);
    const json = cli('check bad.csv -f json');
    expect(json.code).toBe(1);
    expect(JSON.parse(json.out)).toMatchObject({ ok: false, ranks: 2, violations: [{ rank: 1, slot: 0 }] });
  });

  test('finds deadlocks', () => {
    const { code, out } = cli(
      'check -',
      '0F0,0SEND_F0,0RECV_B0,0B0\r\n1RECV_F0,1F0,1B0,1SEND_B0\r\n'.replace(
        '0F0,0SEND_F0,0RECV_B0',
        '0F0,0RECV_B0,0SEND_F0',
      ),
    );
    expect(code).toBe(1);
    expect(out).toContain('deadlock');
  });

  test('takes counts that the file does not say', () => {
    const { out } = cli('schedule 1F1B -p 2 -m 4 -f csv --compat torch');
    writeFileSync(join(folder, 'four.csv'), '0F0,0B0\n1F0,1B0\n');
    expect(out).toContain('REDUCE_GRAD');
    expect(cli('check four.csv').code).toBe(0);
    expect(cli('check four.csv -m 2')).toMatchObject({ code: 1, out: expect.stringContaining('missing') });
    expect(cli('check four.csv --stages 3').code).toBe(1);
  });

  test('a file that is no schedule fails the check; a file that is not there is a usage error', () => {
    expect(cli('check -', '0F0,hello\n')).toMatchObject({ code: 1, out: '', err: expect.stringContaining("'hello'") });
    expect(cli('check nothing.csv')).toEqual({
      code: 2,
      out: '',
      err: 'pipewright: cannot read nothing.csv: no such file or folder\n',
    });
  });
});

describe('what goes wrong is said in a line or two, without a stack', () => {
  test.each([
    'schedule',
    'schedule 1F1 -p 2 -m 2',
    'schedule 1F1B',
    'schedule 1F1B -p 2',
    'schedule 1F1B -p 0 -m 2',
    'schedule 1F1B -p 2 -m two',
    'schedule 1F1B -p 2 -m 4 --stages-per-rank 2',
    'schedule 1F1B -p 4 -m 2 --compat torch',
    'schedule 1F1B -p 4 -m 8 --formt csv',
    'schedule 1F1B -p 4 -m 8 --format cvs',
    'schedule 1F1B -p 4 -m 8 --compat tensorflow',
    'schedule nothing.csv',
    'schedule 1F1B -p 2 -m 2 --out nowhere/a.csv',
    'simulate 1F1B -p 2 -m 2 --F -1',
    'simulate 1F1B -p 2 -m 2 --F 1,2,3',
    'simulate 1F1B -p 2 -m 2 --costs nothing.json',
    'simulat 1F1B',
  ])('%s', (line) => {
    const { code, out, err } = cli(line);
    expect(code).toBe(2);
    expect(out).toBe('');
    expect(err).toMatch(/^pipewright: /);
    expect(err).not.toMatch(/\n\s+at /);
    expect(err.trim().split('\n').length).toBeLessThanOrEqual(3);
  });

  test('the way out is in the message', () => {
    const said = (line: string): string => cli(line).err.split('\n')[0]!;
    expect(
      [
        'schedule',
        'schedule zbvv -p 2 -m 2',
        'schedule 1F1B -p 2',
        'schedule 1F1B -p 4 -m 8 --formt csv',
        'schedule 1F1B -p 4 -m 8 --format cvs',
        'simulat 1F1B',
      ].map(said),
    ).toMatchInlineSnapshot(`
      [
        "pipewright: which schedule? Name one, for example: pipewright schedule 1F1B --ranks 4 --microbatches 8; --list shows all",
        "pipewright: buildSchedule: there is no schedule 'zbvv'; did you mean 'ZBVZeroBubble'? Known schedules: ForwardOnly, GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, ZBH1, ZBH2, ZB1P, ZB2P, VHalf, VMin, AdaptiveV",
        "pipewright: --microbatches missing; for example: pipewright schedule 1F1B --ranks 4 --microbatches 8",
        "pipewright: unknown option '--formt'",
        "pipewright: option '-f, --format <format>' argument 'cvs' is invalid. Allowed choices are table, timeline, csv, json, svg, trace.",
        "pipewright: unknown command 'simulat'",
      ]
    `);
  });

  test('bad JSON in a costs file', () => {
    writeFileSync(join(folder, 'broken.json'), '{ F: 1 }');
    expect(cli('simulate 1F1B -p 2 -m 2 --costs broken.json')).toMatchObject({
      code: 2,
      err: expect.stringContaining('is not JSON'),
    });
    writeFileSync(join(folder, 'unknown.json'), '{ "comn": 1 }');
    expect(cli('simulate 1F1B -p 2 -m 2 --costs unknown.json')).toMatchObject({
      code: 2,
      err: expect.stringContaining("did you mean 'comm'?"),
    });
  });
});

describe('output', () => {
  test('has colours only if asked for, or on a terminal', () => {
    const escape = '\u001b[';
    expect(cli('schedule 1F1B -p 2 -m 2 -f timeline').out).not.toContain(escape);
    expect(cli('schedule 1F1B -p 2 -m 2 -f timeline --color').out).toContain(escape);
    expect(run(['compare', '1F1B', '-p', '2', '-m', '2'], '', { ...environment, FORCE_COLOR: '1' }).out).toContain(
      escape,
    );
    expect(
      run(['compare', '1F1B', '-p', '2', '-m', '2'], '', { ...environment, FORCE_COLOR: '1', NO_COLOR: '1' }).out,
    ).not.toContain(escape);
    expect(
      run(['compare', '1F1B', '-p', '2', '-m', '2', '--no-color'], '', { ...environment, FORCE_COLOR: '1' }).out,
    ).not.toContain(escape);
  });

  test('may be cut off by its reader', async () => {
    const child = spawn(
      process.execPath,
      [bin, 'schedule', 'Interleaved1F1B', '-p', '32', '-s', '4', '-m', '256', '--lower', '-f', 'table'],
      { env: environment },
    );
    let err = '';
    child.stderr.on('data', (data: Buffer) => (err += data.toString()));
    child.stdout.once('data', () => child.stdout.destroy());
    const code = await new Promise((done) => child.on('close', done));
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const head = spawnSync(
      'sh',
      ['-c', `"${process.execPath}" "${bin}" schedule 1F1B -p 64 -m 512 | head -n 2 | wc -l`],
      { env: environment, encoding: 'utf8' },
    );
    expect([head.stdout.trim(), head.stderr]).toEqual(['2', '']);
  });

  test('to a file is whole or not there', () => {
    expect(cli('schedule 1F1B -p 2 -m 2 -f csv -o whole.csv').code).toBe(0);
    const before = readFileSync(join(folder, 'whole.csv'), 'utf8');
    expect(cli('schedule 1F1B -p 2 -m 2 --stages-per-rank 5 -f csv -o whole.csv').code).toBe(2);
    expect(readFileSync(join(folder, 'whole.csv'), 'utf8')).toBe(before);
    mkdirSync(join(folder, 'folder.csv'), { recursive: true });
    expect(cli('schedule 1F1B -p 2 -m 2 -o folder.csv')).toMatchObject({
      code: 2,
      err: expect.stringContaining('it is a folder'),
    });
    expect(readdirSync(folder).filter((name) => name.endsWith('.tmp'))).toEqual([]);
  });

  test('--out - is standard output', () => {
    expect(cli('schedule 1F1B -p 2 -m 2 -f csv -o -').out).toBe(cli('schedule 1F1B -p 2 -m 2 -f csv').out);
    expect(existsSync(join(folder, '-'))).toBe(false);
  });
});
