// @ts-check
/**
 * @file What the runtime itself costs: stages that compute nothing (they return their input), so that all that is left is
 * walking the schedule, handing over and sending: `node bench/runtime-overhead.mjs`. Processor time per action, best of
 * rounds; one rank with four stages, and thread ranks that exchange messages. With `--device cuda` the time of the host, which
 * does not wait for the GPU, on one rank and on two processes with NCCL (where there is one GPU start MPS first), beside that
 * of the same messages without a runtime.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { buildSchedule } from '@pipewright/schedule';
import { cuda, distributed, nn, ones, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { rankEnvironment } from '../tests/gpu/rank-environment.mjs';

/** @typedef {{ ranks: number, stagesPerRank: number, schedule: string, backward: boolean, device: 'cpu' | 'cuda' }} Setting */

/** Returns its input; the first stage a parameter instead, so that there is a backward. */
class Nothing extends nn.Module {
  /** @param {boolean} first */
  constructor(first) {
    super();
    this.start = first ? new nn.Parameter(ones([1])) : null;
  }

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    return this.start ?? x;
  }
}

/** The best of rounds, in ms of this thread and of the processors. @param {number} rounds @param {() => void} body @param {() => void} settle */
function bestOf(rounds, body, settle) {
  let [wall, cpu] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (let round = 0; round < rounds; round++) {
    settle();
    const used = process.cpuUsage();
    const start = performance.now();
    body();
    wall = Math.min(wall, performance.now() - start);
    const { user, system } = process.cpuUsage(used); // of all threads
    cpu = Math.min(cpu, (user + system) / 1000);
  }
  return { wall, cpu };
}

/** Microseconds per action, and of the same messages without a runtime. @param {Setting} setting */
export function main({ ranks, stagesPerRank, schedule, backward, device }) {
  const onGpu = device === 'cuda';
  const microbatches = onGpu ? 8 : 256; // a host that is too far ahead of its GPU waits for it
  const group = ranks > 1 ? distributed.initProcessGroup() : undefined;
  const rank = group?.rank ?? 0;
  const plan = buildSchedule(schedule, { ranks, stagesPerRank, microbatches });
  const mine = plan.stagesOf(rank);
  const stages = mine.map(
    (s) => new PipelineStage(new Nothing(s === 0 && backward), s, plan.stages, { group, device }),
  );
  const runtime = new PipelineRuntime(stages, plan, {
    ...(backward ? { lossFn: (/** @type {import('@pipewright/torch').Tensor} */ y) => y } : {}),
  });
  const x = ones([microbatches, 1], { device });
  const step = () => scope(() => void runtime.step(x, { returnOutputs: false }));
  const settle = () => {
    if (onGpu) cuda.synchronize();
    group?.barrier();
  };
  for (let i = 0; i < 20; i++) step();
  const row = runtime.schedule.order[rank] ?? [];
  const kinds = backward ? row : row.filter((cell) => cell !== null && /F$/.test(cell.kind));
  const actions = kinds.filter((cell) => cell !== null).length;
  const repeats = onGpu ? 1 : 5;
  const all = () => {
    for (let i = 0; i < repeats; i++) step();
  };
  const { wall, cpu } = bestOf(onGpu ? 200 : 15, all, settle);
  const time = ranks > 1 || onGpu ? wall : Math.min(wall, cpu);
  const bare = onGpu && group !== undefined ? bareMessages(group, x, { microbatches, backward, settle }) : 0;
  return { perAction: (time * 1000) / repeats / actions, bare: (bare * 1000) / actions };
}

/** Milliseconds of the messages of a step alone. @param {distributed.ProcessGroup} group @param {import('@pipewright/torch').Tensor} x
 * @param {{ microbatches: number, backward: boolean, settle: () => void }} options */
function bareMessages(group, x, { microbatches, backward, settle }) {
  const [rank, peer] = [group.rank, 1 - group.rank];
  const lanes = [true, false].map((sends) => group.lane(peer, { name: `bare ${sends ? rank : peer}`, sends }));
  const [out, back] = /** @type {[distributed.DeviceLane, distributed.DeviceLane]} */ (lanes);
  for (const lane of lanes) lane.ready();
  const format = [{ dtype: x.dtype, shape: [1, 1] }];
  const one = x.narrow(0, 0, 1);
  const send = () => out.send([one]);
  const receive = () => scope(() => back.recv(format).wait());
  const { wall } = bestOf(
    200,
    () => {
      for (let i = 0; i < microbatches; i++) {
        if (rank === 0) send();
        else receive();
        if (backward && rank === 1) send();
        if (backward && rank === 0) receive();
      }
    },
    settle,
  );
  out.join();
  settle();
  return wall;
}

/** What two processes with NCCL find. @param {Setting} setting @returns {Promise<{ perAction: number, bare: number }[]>} */
async function onProcesses(setting) {
  const port = await distributed.freePort();
  return Promise.all(
    Array.from({ length: setting.ranks }, (_, rank) => {
      const child = spawn(process.execPath, [fileURLToPath(import.meta.url), '--rank', JSON.stringify(setting)], {
        stdio: ['ignore', 'pipe', 'inherit'],
        timeout: 60_000,
        killSignal: 'SIGKILL',
        env: { ...process.env, ...rankEnvironment(rank, setting.ranks, port) },
      });
      let output = '';
      child.stdout.on('data', (/** @type {Buffer} */ chunk) => (output += chunk.toString()));
      return new Promise((resolve, reject) =>
        child.on('close', (code) =>
          code === 0 ? resolve(JSON.parse(output)) : reject(new Error(`rank ${rank} ended with ${String(code)}`)),
        ),
      );
    }),
  );
}

if (isMainThread) {
  const { values: flags } = parseArgs({
    options: { device: { type: 'string', default: 'cpu' }, rank: { type: 'string' } },
  });
  if (flags.rank !== undefined) {
    const found = main(JSON.parse(flags.rank));
    distributed.destroyProcessGroup();
    console.log(JSON.stringify(found));
  } else {
    const device = flags.device === 'cuda' ? 'cuda' : 'cpu';
    for (const one of [
      { ranks: 1, stagesPerRank: 4, schedule: 'Interleaved1F1B', backward: false },
      { ranks: 1, stagesPerRank: 4, schedule: 'Interleaved1F1B', backward: true },
      { ranks: 1, stagesPerRank: 4, schedule: 'InterleavedZeroBubble', backward: true },
      { ranks: 2, stagesPerRank: 1, schedule: '1F1B', backward: false },
      { ranks: 2, stagesPerRank: 1, schedule: '1F1B', backward: true },
    ]) {
      /** @type {Setting} */
      const setting = { ...one, device };
      const found =
        one.ranks === 1
          ? [main(setting)]
          : device === 'cuda'
            ? await onProcesses(setting)
            : /** @type {{ perAction: number, bare: number }[]} */ (
                await distributed.spawnThreads(one.ranks, new URL(import.meta.url), setting).done
              );
      const { ranks, stagesPerRank, schedule, backward } = one;
      const what = `${ranks} rank${ranks === 1 ? '' : 's'}, ${stagesPerRank} stage${stagesPerRank === 1 ? '' : 's'} each`;
      const [worst] = found.toSorted((a, b) => b.perAction - b.bare - (a.perAction - a.bare));
      const { perAction = 0, bare = 0 } = worst ?? {};
      const more = bare === 0 ? '' : `, of which ${bare.toFixed(2)} are the messages themselves`;
      console.log(
        `${schedule.padEnd(22)} ${what.padEnd(24)} ${backward ? 'step' : 'forward only'}: ${perAction.toFixed(2)} us per action${more}`,
      );
    }
  }
}
