/** @file Devices, pipes and full disks for tests; made as for the engine's. */
export * from '../../torch/testing/special-files.ts';
