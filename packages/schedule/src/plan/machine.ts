/** @file Checks the description of a machine, which is written by hand. */
import { show } from '../model/errors.ts';

/**
 * What is wrong with a machine that is given for a number of ranks, and how it is written; null where nothing is.
 * @example machineProblem({ slowness: 2 }, 4) // 'slowness is 2; give a list of 4 positive numbers, one for each rank'
 */
export function machineProblem(machine: object, ranks: number): string | null {
  const { memory, slowness, bandwidth, latency, links } = machine as Record<string, unknown>;
  const wrong = (name: string, value: unknown, rule: string): string => `${name} is ${show(value)}; give ${rule}`;
  const each = `one for each of the ${ranks} ranks`;
  const isPerRank = (list: unknown): boolean =>
    Array.isArray(list) && list.length === ranks && list.every((value) => isPositive(value));
  if (memory !== undefined && !isPositive(memory) && !isPerRank(memory))
    return wrong('memory', memory, `a positive number of bytes, or a list with ${each}`);
  if (slowness !== undefined && !(isPerRank(slowness) && (slowness as number[]).every(Number.isFinite)))
    return wrong('slowness', slowness, `a list of positive numbers, ${each}: 1, or 2 for twice as slow`);
  const linkProblem = (of: Record<string, unknown>, where: string): string | null => {
    if (of['bandwidth'] !== undefined && !isPositive(of['bandwidth']))
      return wrong(`${where}bandwidth`, of['bandwidth'], 'a positive number of bytes per second');
    if (of['latency'] !== undefined && !(isNumber(of['latency']) && of['latency'] >= 0))
      return wrong(`${where}latency`, of['latency'], 'a number of seconds of at least 0');
    return null;
  };
  const problem = linkProblem({ bandwidth, latency }, '');
  if (problem !== null || links === undefined) return problem;
  const rule = 'a list of { from, to, bandwidth, latency }, where from and to are ranks';
  if (!Array.isArray(links)) return wrong('links', links, rule);
  const isRank = (value: unknown): boolean => Number.isInteger(value) && Number(value) >= 0 && Number(value) < ranks;
  for (const [at, link] of (links as unknown[]).entries()) {
    const { from, to, ...rest } = Object(link) as Record<string, unknown>;
    if (!isRank(from) || !isRank(to) || from === to)
      return wrong(`links[${at}]`, link, `two different ranks below ${ranks}: ${rule}`);
    const found = linkProblem(rest, `links[${at}].`);
    if (found !== null) return found;
  }
  return null;
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** A positive number; without end counts too. */
function isPositive(value: unknown): boolean {
  return typeof value === 'number' && value > 0;
}
