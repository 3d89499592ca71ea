/** @file The file of a plan: it has a checksum, so that what it held is kept where it was changed by hand or is of another model. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join, parse, resolve } from 'node:path';
import { isPlan, type PipelinePlan } from '@pipewright/schedule';
import { writeResult } from '../../shared/output.ts';

/** What became of the text that a file held. */
export interface Earlier {
  /** It held another text. */
  readonly isReplaced: boolean;
  /** Where that text is now; null where it was a plan for the same model, as this command had written it. */
  readonly kept: string | null;
}

/** Writes a plan; what cannot be planned again is copied to a free name first, such as `plan.1.json`. */
export async function writePlan(plan: PipelinePlan, file: string): Promise<Earlier> {
  const text = `${JSON.stringify({ ...plan, checksum: checksumOf(plan) }, null, 2)}\n`;
  const before = file === '-' ? null : textIn(file);
  const isReplaced = before !== null && before.length > 0 && !before.equals(Buffer.from(text));
  const kept = isReplaced && !isReplaceable(before.toString('utf8'), plan) ? freeName(file) : null;
  const { writeFile } = await import('@pipewright/torch/files');
  try {
    if (kept !== null) writeFile(kept, before!);
  } catch (error) {
    process.stdout.write(text);
    throw error;
  }
  await writeResult(text, file);
  return { isReplaced, kept };
}

/** What an ordinary file holds; null for any other. */
function textIn(file: string): Buffer | null {
  if (/^\/(dev|proc)\//.test(resolve(file)) || statSync(file, { throwIfNoEntry: false })?.isFile() !== true)
    return null;
  return readFileSync(file);
}

/** Whether a text is a plan for the model of another one, and as it was written. */
function isReplaceable(text: string, { units }: PipelinePlan): boolean {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    return false;
  }
  if (!isPlan(data)) return false;
  const { checksum, ...plan } = data as PipelinePlan & { readonly checksum?: unknown };
  return checksum === checksumOf(plan) && JSON.stringify(plan.units.flat()) === JSON.stringify(units.flat());
}

/** Of what a plan says, however its text is laid out. */
function checksumOf(plan: PipelinePlan): string {
  return createHash('sha256').update(JSON.stringify(plan)).digest('hex').slice(0, 16);
}

function freeName(file: string): string {
  const { dir, name, ext } = parse(file);
  for (let number = 1; ; number++) {
    const path = join(dir, `${name}.${number}${ext}`);
    if (!existsSync(path)) return path;
  }
}
