/** @file Optimizers by name, and a small model that tests train with them. */
import { manualSeed, nn, optim, randn, scope, type Tensor } from '../src/index.ts';

const types = [
  optim.SGD,
  optim.Adam,
  optim.AdamW,
  optim.Adagrad,
  optim.RMSprop,
  optim.Adamax,
  optim.NAdam,
  optim.RAdam,
  optim.Adafactor,
] as const;
type OptimizerType = new (params: Iterable<Tensor>, options?: object) => optim.Optimizer;
/** The optimizers that move any parameter, by name. */
export const kinds = types.map((type) => [type.name, type as unknown as OptimizerType] as const);

manualSeed(5);
/** A batch for `model`. */
export const inputs: Tensor = randn([8, 3]);

/** A small model. */
export function model(seed = 0): nn.Sequential {
  manualSeed(seed);
  return new nn.Sequential(new nn.Linear(3, 4), new nn.Tanh(), new nn.Linear(4, 1));
}

/** Trains a model and returns the last loss. */
export function train(net: nn.Sequential, optimizer: optim.Optimizer, steps: number, x: Tensor): number {
  let loss = NaN;
  for (let i = 0; i < steps; i++) {
    loss = scope(() => {
      const value = net.forward(x).square().mean();
      value.backward();
      optimizer.step();
      optimizer.zeroGrad();
      return value.item();
    });
  }
  return loss;
}
