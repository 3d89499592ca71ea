/** @file The machine that is planned for: of the flags and of a file. */
import type { PlanMachine } from '@pipewright/schedule';
import { bytesOf } from '../../shared/flags.ts';
import { readText } from '../../shared/source.ts';
import { UsageError } from '../../shared/usage-error.ts';

/** The flags about the machine. */
interface MachineFlags {
  readonly ranks: number;
  readonly memory?: number | readonly number[];
  readonly machine?: string;
}

const known = ['memory', 'slowness', 'bandwidth', 'latency', 'links'];

/** The machine of the flags and of its file, checked before anything is measured. */
export async function machineOf(flags: MachineFlags): Promise<PlanMachine> {
  const { machineProblem } = await import('@pipewright/schedule/internal');
  const { machine: file, memory, ranks } = flags;
  const given = file === undefined ? {} : readMachine(file, ranks);
  const problem = machineProblem(given, ranks);
  if (problem !== null) throw new UsageError(`--machine ${file}: ${problem}`);
  if (Array.isArray(memory) && memory.length !== ranks)
    throw new UsageError(
      `--memory has ${memory.length} values for ${ranks} ranks; give one number, or one for each rank`,
    );
  return memory === undefined ? given : { ...given, memory };
}

function readMachine(file: string, ranks: number): PlanMachine {
  let read: unknown;
  try {
    read = JSON.parse(readText(file));
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`--machine ${file} is not JSON (${(error as Error).message})`);
  }
  if (typeof read !== 'object' || read === null || Array.isArray(read))
    throw new UsageError(`--machine ${file} holds no object; write { "memory": "20GB", "bandwidth": 1e10 }`);
  const { ranks: own, ...machine } = read as Record<string, unknown>;
  const unknown = Object.keys(machine).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new UsageError(`--machine ${file}: '${unknown}' is not one of ${known.join(', ')}`);
  if (own !== undefined && own !== ranks)
    throw new UsageError(`--machine ${file} has ${String(own)} ranks, --ranks says ${ranks}`);
  const { memory } = machine;
  return { ...machine, ...(memory === undefined ? {} : { memory: inBytes(memory) as number }) };
}

/** Texts such as `20GB` as numbers; what is something else stays for the check. */
function inBytes(memory: unknown): unknown {
  if (Array.isArray(memory)) return memory.map(inBytes);
  return typeof memory === 'string' ? (bytesOf(memory) ?? memory) : memory;
}
