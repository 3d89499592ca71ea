/** @file The rule by which tests compare floating-point numbers; the engine's. */
export * from '../../torch/testing/rounding.ts';
