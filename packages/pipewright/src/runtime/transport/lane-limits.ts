/** @file What a GPU cannot do at once: why a step with many lanes is not captured, and how it is kept from waiting in vain. */

/**
 * With more lanes than this a rank's steps are not captured. In a captured graph the GPU may begin with a message that comes late
 * before what others wait for, where more is to be done side by side than it has queues for; 8 to 11 lanes were seen to hang.
 * Outside of graphs it keeps the order in which things were asked for, which is that of the row.
 */
const LANES_IN_GRAPH = 6;
/** Queues of a GPU where CUDA_DEVICE_MAX_CONNECTIONS does not say otherwise. */
const USUAL_QUEUES = 8;

/** Why a rank with so many lanes would not capture its steps; empty where it would. */
export function graphObstacle(lanes: number): string {
  if (lanes <= LANES_IN_GRAPH) return '';
  return `its messages go over ${lanes} lanes, because stages take values of several others; with more than ${LANES_IN_GRAPH} a CUDA graph may hang`;
}

/** What a rank with so many lanes is told; null where the queues of its GPU are enough. */
export function queueWarning(lanes: number, env: NodeJS.ProcessEnv = process.env): string | null {
  const queues = Number(env['CUDA_DEVICE_MAX_CONNECTIONS'] ?? USUAL_QUEUES);
  // One more for what is computed; one queue alone is a choice, and does everything in the order of the row.
  if (lanes < queues || queues === 1) return null;
  return `the messages of this rank go over ${lanes} lanes, and the GPU has ${queues} queues: messages may hold up each other; start the ranks with CUDA_DEVICE_MAX_CONNECTIONS=32`;
}
