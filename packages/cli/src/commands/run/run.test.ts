/** @file `pipewright run` as one types it: arguments, exit codes, the order of what is told, Ctrl-C, other launchers. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { freePort } from '@pipewright/torch/environment';
import { beforeAll, describe, expect, test } from 'vitest';
import { bin, cli, environment, folder, run } from '../../../testing/run-cli.ts';

// A project of a user's: our packages are in its node_modules, and TypeScript for Node 20.
beforeAll(() => {
  const modules = fileURLToPath(new URL('../../../../../node_modules', import.meta.url));
  symlinkSync(modules, join(folder, 'node_modules'));
  writeFileSync(join(folder, 'train.ts'), train);
  mkdirSync(join(folder, 'js'));
  writeFileSync(join(folder, 'js/plain.mjs'), "console.log('plain', process.argv.slice(2).join(' '));");
});

const train = `
import { writeFileSync } from 'node:fs';
import { distributed, tensor } from '@pipewright/torch';

const group: distributed.ProcessGroup = distributed.initProcessGroup();
const total = tensor([1]);
group.allReduce(total);
const [what, ...rest] = process.argv.slice(2);
console.log('ready', total.item(), rest.join(' '));
if (what === 'fail' && group.rank === 0) group.channel(1).sendObject('about to wait');
if (what === 'fail' && group.rank === 1) group.channel(0).recvObject();
if (what === 'fail' && group.rank === 1) throw new RangeError('rank 1 is broken');
if (what === 'wait') writeFileSync(rest[0] + '.' + group.rank, String(process.pid));
if (what !== 'sum') group.channel(1 - group.rank).recv(1);
`;

test('help', () =>
  expect(cli('run --help').out).toMatchInlineSnapshot(`
    "Usage: pipewright run [options] <script> [args...]

    start a script on several ranks; when one fails, all end and the first cause is
    reported

    Arguments:
      script                JavaScript or TypeScript; if it exports a function main,
                            that is called
      args                  the script's own arguments

    Options:
      -n, --ranks <n>       ranks on this machine; without it, run as one rank
                            started by torchrun, srun or mpirun
      --processes           a process for each rank (default)
      --threads             a thread for each rank: starts faster, tensors are
                            passed without copying
      --nnodes <n>          machines that take part, each with a \`pipewright run\` of
                            its own
      --node-rank <i>       which of them this is, from 0 (default: as Slurm or
                            Kubernetes says)
      --master-addr <host>  address of machine 0 (default: MASTER_ADDR)
      --master-port <port>  port of rank 0; machines also use the next one (default:
                            a free one, or 29500)
      --interface <name>    network interface of ranks and launchers (default: the
                            one towards machine 0)
      --secret <text>       shared secret of the machines in this run (default:
                            PIPEWRIGHT_SECRET; machine 0 makes one); others can see
                            it in a list of processes
      --secret-file <file>  a file with the secret that all machines can read;
                            machine 0 makes it
      --timeout <seconds>   time limit of every wait for another rank (default 300)
      --grace <seconds>     how long ranks may take to end after a failure or Ctrl-C
                            (default 2)
      --max-restarts <n>    how often ranks are started again after a failure: the
                            lost one alone in a trainLoop, else all (default 0)
      --cores <n>           cores for the operators of each rank (default: a fair
                            share)
      --plan <file>         a plan of \`pipewright plan\`: scripts find it with
                            givenPlan(), and the run is compared with it
      --refit <file>        write the plan with the costs that the run has shown
      --studio              serve a page that shows the run while it goes on; its
                            address is printed
      --live <folder>       write what the page needs into a folder; \`pipewright
                            studio <folder>\` shows it
      -h, --help            display help for command

    Examples:
      pipewright run -n 4 train.ts --lr 0.1                      4 processes; --lr is the script's
      pipewright run -n 4 --threads train.ts                     4 threads of one process
      pipewright run -n 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --secret-file ~/run1.secret train.ts
                                                                 2 ranks on each of 2 machines
      pipewright run --plan plan.json --threads train.ts         follow the plan and report the prediction error
      torchrun --nproc-per-node 4 --no-python npx pipewright run train.ts
      srun --ntasks 8 npx pipewright run train.ts                under other launchers

    "
  `));

describe('runs', () => {
  test.each(['--processes', '--threads'])('TypeScript, with its own arguments, %s', (mode) => {
    const { code, out, err } = run(['run', '-n', '2', mode, 'train.ts', 'sum', '--lr', '0.1', '-n', '9']);
    expect(err).toBe('');
    expect(out.trimEnd().split('\n').toSorted()).toEqual([
      '[rank 0] ready 2 --lr 0.1 -n 9',
      '[rank 1] ready 2 --lr 0.1 -n 9',
    ]);
    expect(code).toBe(0);
  });

  test('as a rank that another launcher has started', () => {
    // The port follows from the job: another run of these tests on this machine has another one.
    const job = { SLURM_JOB_NODELIST: 'localhost', SLURM_JOB_ID: String(process.pid) };
    const slurm = { SLURM_PROCID: '0', SLURM_NTASKS: '1', ...job };
    expect(run(['run', 'train.ts', 'sum', 'here'], '', { ...environment, ...slurm })).toEqual({
      code: 0,
      out: 'ready 1 here\n',
      err: '',
    });
  });
});

test('a rank that fails: its error comes first, and its exit code is ours', () => {
  const { code, err } = run(['run', '-n', '2', '--grace', '60', 'train.ts', 'fail']);
  const lines = err.split('\n');
  expect(lines[0]).toBe('pipewright: rank 1 failed: rank 1 is broken');
  expect(lines[1]).toBe('    RangeError: rank 1 is broken');
  expect(lines[2]).toMatch(/train\.ts:12:/);
  expect(err).toMatch(/^Then rank 0 failed: Channel\.recv in group 'default': rank 0 for rank 1 with tag 1/m);
  expect(code).toBe(1);
});

test('Ctrl-C ends all, with its exit code', async () => {
  const file = join(folder, 'pids');
  const child = spawn(process.execPath, [bin, 'run', '-n', '2', 'train.ts', 'wait', file], {
    cwd: folder,
    env: environment,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let err = '';
  child.stderr.on('data', (text) => (err += String(text)));
  const read = (rank: number): number =>
    existsSync(`${file}.${rank}`) ? Number(readFileSync(`${file}.${rank}`, 'utf8')) : 0;
  while (read(0) === 0 || read(1) === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  const pids = [0, 1].map(read);
  child.kill('SIGINT');
  const [code] = (await once(child, 'close')) as [number];
  expect(err).toBe('pipewright: all ranks ended after SIGINT\n');
  expect(code).toBe(130);
  for (const pid of pids) expect(() => process.kill(pid, 0)).toThrow('ESRCH');
});

/** Starts the launcher of one of two machines; ended with the tests if it has not ended before. */
function startMachine(args: readonly string[], more: NodeJS.ProcessEnv = {}): Machine {
  const child = spawn(process.execPath, [bin, 'run', '-n', '1', '--nnodes', '2', ...args, 'js/plain.mjs', 'here'], {
    cwd: folder,
    env: { ...environment, PIPEWRIGHT_SECRET: '', ...more },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 300_000,
    killSignal: 'SIGKILL',
  });
  const machine = { child, out: '', err: '', code: once(child, 'close').then(([code]) => code as number | null) };
  child.stdout.on('data', (text) => (machine.out += String(text)));
  child.stderr.on('data', (text) => (machine.err += String(text)));
  return machine;
}

interface Machine {
  readonly child: ReturnType<typeof spawn>;
  out: string;
  err: string;
  readonly code: Promise<number | null>;
}

describe('two machines', () => {
  const loopback =
    Object.entries(networkInterfaces()).find(([, addresses]) => addresses?.some(({ internal }) => internal))?.[0] ??
    'lo';
  const text = 'a secret of many characters';
  const file = join(folder, 'run.secret');
  const place = (nodeRank: number, port: number): string[] =>
    `--node-rank ${nodeRank} --master-addr 127.0.0.1 --master-port ${port}`.split(' ');

  test.each([
    ['a flag', ['--secret', text], {}],
    ['a variable', ['--interface', loopback], { PIPEWRIGHT_SECRET: text }],
    ['a file, which machine 0 makes', ['--secret-file', file], {}],
  ])('share the secret by %s', async (_, flags, env) => {
    const port = await freePort();
    const machines = [1, 0].map((nodeRank) => startMachine([...place(nodeRank, port), ...flags], env));
    expect(await Promise.all(machines.map(({ code }) => code))).toEqual([0, 0]);
    expect(machines.map(({ out, err }) => [out, err])).toEqual([
      ['[rank 1] plain here\n', ''],
      ['[rank 0] plain here\n', ''],
    ]);
  });

  test('share the secret that machine 0 has made and told', async () => {
    const port = await freePort();
    const zero = startMachine(place(0, port));
    while (!zero.err.includes('\n') && zero.child.exitCode === null)
      await new Promise((resolve) => setTimeout(resolve, 20));
    const made = /^pipewright: for the other machines: export PIPEWRIGHT_SECRET=([\w-]{43,})\n$/.exec(zero.err)?.[1];
    const one = startMachine(place(1, port), { PIPEWRIGHT_SECRET: made ?? '' });
    expect(await Promise.all([zero.code, one.code])).toEqual([0, 0]);
    expect([zero.out, one.out, one.err]).toEqual(['[rank 0] plain here\n', '[rank 1] plain here\n', '']);
  });
});

describe('what cannot be carried out is refused', () => {
  test.each([
    ['run', "missing required argument 'script'"],
    [
      'run train.ts --ranks 4',
      "--ranks comes before the script, since what follows it is the script's: pipewright run -n 4 train.ts",
    ],
    ['run train.ts --lr 1 -n=3', 'pipewright run -n 3 train.ts'],
    ['run -n 2 torch.csv', 'torch.csv is neither JavaScript nor TypeScript; name a script such as train.ts'],
    ['studio --port 99999', 'It must be a whole number from 1 to 65535.'],
    ['schedule 1F1B -p 4 -m 8 --stages 4', 'There is no --stages here; give --stages-per-rank.'],
    ['schedule 1F1B', '--ranks and --microbatches missing for 1F1B; for example --ranks 4 --microbatches 8'],
    ['run train.ts', 'say how many ranks, for example: pipewright run -n 4 train.ts'],
    ['run -n 0 train.ts', 'It must be a whole number of at least 1.'],
    ['run -n 2 nothing.ts', 'there is no file '],
    ['run -n 2 --threads --processes train.ts', '--threads and --processes exclude each other'],
    ['run -n 2 --nnodes 2 train.ts', '--node-rank is missing; with 2 machines, give 0 to 1'],
    ['run -n 2 --nnodes 2 --node-rank 1 train.ts', '--master-addr is missing; give the address of machine 0'],
    [
      'run -n 2 --interface nosuch0 train.ts',
      'this machine has no network interface "nosuch0" with an address; it has ',
    ],
    [
      'run -n 2 --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --secret short train.ts',
      'the secret has 5 characters; give at least 16',
    ],
    ['run -n 2 --timeout soon train.ts', 'It must be a number of seconds, more than 0.'],
    ['run --rank 2 train.ts', "unknown option '--rank'"],
  ])('%s', (line, message) => {
    const { code, err } = cli(line);
    expect(err).toContain(message);
    expect(code).toBe(2);
  });
});
