// @ts-check
/** @file The environment of a GPU rank that is a process of this machine. */
import { cuda } from '@pipewright/torch';

/** Queues of the GPU that all processes on it have together under MPS. */
const QUEUES = 64;

/** Queues of each rank where ranks share a GPU; `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise. @param {number} ranks @returns {Record<string, string>} */
export function queuesOf(ranks) {
  if (ranks <= cuda.deviceCount()) return {};
  const usual = String(Math.min(32, Math.floor(QUEUES / ranks)));
  return { CUDA_DEVICE_MAX_CONNECTIONS: process.env['CUDA_DEVICE_MAX_CONNECTIONS'] ?? usual };
}

/**
 * Variables of one rank. With more ranks than GPUs, NCCL is told that every rank is a host of its own, and the queues of the GPU are divided.
 * @param {number} rank @param {number} ranks @param {number} port
 * @returns {Record<string, string>}
 */
export function rankEnvironment(rank, ranks, port) {
  const place = {
    RANK: String(rank),
    LOCAL_RANK: String(rank),
    WORLD_SIZE: String(ranks),
    MASTER_ADDR: '127.0.0.1',
    MASTER_PORT: String(port),
  };
  if (ranks <= cuda.deviceCount()) return place;
  return {
    ...place,
    NCCL_HOSTID: `host${rank}`,
    NCCL_SOCKET_IFNAME: 'lo',
    NCCL_IB_DISABLE: '1',
    ...queuesOf(ranks),
  };
}
