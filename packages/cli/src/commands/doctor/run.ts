/** @file `pipewright doctor`: what the engine needs, and what is missing. */
import pc from 'picocolors';
import { writeResult } from '../../shared/output.ts';

/** The flags of the command. */
export interface DoctorFlags {
  readonly json?: boolean;
}

/** Prints the report; returns the exit code, 1 when something needed is missing. */
export async function doctor(flags: DoctorFlags): Promise<number> {
  const { diagnose, formatReport } = await import('@pipewright/torch/setup');
  const report = diagnose();
  const paint = { ok: pc.green, missing: pc.red, absent: pc.yellow, info: pc.dim };
  const text = flags.json
    ? JSON.stringify(report, null, 2)
    : formatReport(report, (health, part) => paint[health](part));
  await writeResult(`${text}\n`, undefined);
  return report.ok ? 0 : 1;
}
