/** @file `pipewright doctor`: what the engine stands on, and what is missing. */
import pc from 'picocolors';

export interface DoctorCommandOptions {
  readonly json?: boolean;
}

/** Prints the report; returns the exit code, 1 when something needed is missing. */
export async function doctor(options: DoctorCommandOptions): Promise<number> {
  const { diagnose, formatReport } = await import('@pipewright/torch/setup');
  const report = diagnose();
  const paint = { ok: pc.green, missing: pc.red, absent: pc.yellow, info: pc.dim };
  console.log(
    options.json ? JSON.stringify(report, null, 2) : formatReport(report, (health, text) => paint[health](text)),
  );
  return report.ok ? 0 : 1;
}
