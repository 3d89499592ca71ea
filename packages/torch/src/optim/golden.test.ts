/**
 * @file Every optimizer of golden/optim.jsonl and nn/optim.jsonl, and of tools/python/cases where they were written, as PyTorch 2.15
 * ran it: the parameters after each step.
 */
import { expect, test } from 'vitest';
import {
  decode,
  decodeAll,
  type Json,
  type JsonObject,
  moreCases,
  type Numbered,
  readCases,
} from '../../testing/cases.ts';
import { optim, scope, type Tensor } from '../index.ts';

interface Case extends Numbered {
  readonly optimizer: string;
  readonly options: JsonObject;
  readonly params: readonly Json[];
  readonly grads: readonly (readonly Json[])[];
  readonly after: readonly (readonly Json[])[];
}

const cases = [...readCases<Case>('golden/optim'), ...readCases<Case>('nn/optim'), ...moreCases<Case>('optim')];

type Type = new (params: Tensor[], options: object) => optim.Optimizer;

test.each(cases.map((item) => [`${item.optimizer} ${JSON.stringify(item.options)}`, item] as const))(
  '%s',
  (_, item) => {
    const params = item.params.map((value) => (decode(item, value) as Tensor).requiresGrad_());
    const type = (optim as unknown as Record<string, Type>)[item.optimizer] as Type;
    using optimizer = new type(params, decodeAll(item, item.options));
    item.grads.forEach((grads, step) =>
      scope(() => {
        grads.forEach((grad, i) => {
          (params[i] as Tensor).grad = decode(item, grad) as Tensor;
        });
        optimizer.step();
        params.forEach((param, i) => {
          // Muon makes its updates orthogonal in bfloat16, whose products differ from processor to processor.
          const rounding = item.optimizer === 'Muon' ? 1e-3 : 0;
          const want = Array.from((decode(item, item.after[step]?.[i] as Json) as Tensor).toTypedArray(), Number);
          Array.from(param.toTypedArray(), Number).forEach((value, e) => {
            expect(Math.abs(value - (want[e] as number))).toBeLessThanOrEqual(1e-12 * Math.abs(value) + rounding);
          });
        });
      }),
    );
  },
);
