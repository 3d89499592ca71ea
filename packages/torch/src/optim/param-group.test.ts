/** @file Groups of parameters: their options, how they are printed, refusals. */
import { describe, expect, test } from 'vitest';
import { codeOf } from '../../testing/error-code.ts';
import { nn, ones, optim, type Tensor } from '../index.ts';

describe('groups', () => {
  test('have options of their own and can be added', () => {
    const [p, q, r] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    const optimizer = new optim.SGD([{ params: [p] }, { params: q, lr: 0.5 }], { lr: 0.1 });
    optimizer.addParamGroup({ params: [r], lr: 1, weightDecay: 1 });
    for (const one of [p, q, r]) one.grad = ones([1]);
    optimizer.step();
    expect([p, q, r].map((one) => one.item())).toEqual([0.8999999761581421, 0.5, -1]);
    (optimizer.paramGroups[0] as { lr: number }).lr = 0;
    optimizer.step();
    expect(p.item()).toBe(0.8999999761581421);
  });

  test('that were changed to what makes no sense are refused, and nothing is forgotten', () => {
    const [p, q] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    const optimizer = new optim.AdamW([{ params: [p] }, { params: [q] }]);
    [p.grad, q.grad] = [ones([1]), ones([1])];
    optimizer.step();
    const group = optimizer.paramGroups[0]!;
    for (const params of [[p, q], [p.mul(2)], [undefined], new Set([p])]) {
      group.params = params as Tensor[];
      expect(codeOf(() => optimizer.step())).toMatch(/^(BAD_ARGUMENT|NOT_LEAF)$/);
    }
    group.params = [p];
    expect(optimizer.stateOf(p)['step']?.item()).toBe(1);
  });

  test('can name their parameters', () => {
    const net = new nn.Linear(1, 1);
    expect(new optim.SGD(net.namedParameters()).paramGroups[0]?.paramNames).toEqual(['weight', 'bias']);
  });

  test('are printed', () => {
    expect(new optim.SGD([ones([1])], { lr: 0.1 }).toString()).toMatchInlineSnapshot(`
      "SGD (
      Parameter Group 0
          dampening: 0
          lr: 0.1
          maximize: false
          momentum: 0
          nesterov: false
          weightDecay: 0
      )"
    `);
  });

  test('whose options are no numbers are refused by step, which moves nothing', () => {
    const [p, q] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    [p.grad, q.grad] = [ones([1]), ones([1])];
    const messageOf = (optimizer: optim.Optimizer, options: object): unknown => {
      const group = optimizer.paramGroups[1]!;
      const before = { ...group };
      Object.assign(group, options);
      try {
        optimizer.step();
      } catch (error) {
        expect(codeOf(() => optimizer.step())).toBe('BAD_ARGUMENT');
        return (error as Error).message;
      } finally {
        Object.assign(group, before);
      }
      return 'no error';
    };
    const groups = [{ params: [p] }, { params: [q] }];
    const adam = new optim.Adam(groups) as optim.Optimizer;
    const rprop = new optim.Rprop(groups) as optim.Optimizer;
    const adafactor = new optim.Adafactor(groups) as optim.Optimizer;
    expect([
      messageOf(adam, { weightDecay: undefined }),
      messageOf(adam, { lr: '0.1' }),
      messageOf(adam, { lr: Number.NaN }),
      messageOf(adam, { eps: null }),
      messageOf(adam, { betas: [0.9] }),
      messageOf(adam, { betas: undefined }),
      messageOf(adam, { decoupledWeightDecay: undefined }),
      messageOf(adam, { eps: ones([1]) }),
      messageOf(rprop, { lr: undefined }),
      messageOf(adafactor, { eps: [null, null] }),
    ]).toMatchInlineSnapshot(`
      [
        "Adam.step: weightDecay of group 1 is undefined; set it to a number",
        "Adam.step: lr of group 1 is '0.1'; set it to a number",
        "Adam.step: lr of group 1 is NaN; set it to a number",
        "Adam.step: eps of group 1 is null; set it to a number",
        "Adam.step: betas.1 of group 1 is undefined; set it to a number",
        "Adam.step: betas.0 of group 1 is undefined; set it to a number",
        "Adam.step: decoupledWeightDecay of group 1 is NaN; set it to a number",
        "Adam.step: eps of group 1 is a Tensor; set it to a number",
        "Rprop.step: lr of group 1 is undefined; set it to a number",
        "Adafactor.step: eps.1 of group 1 is null; set it to a number",
      ]
    `);
    expect([p.item(), q.item()]).toEqual([1, 1]);
    expect(messageOf(adafactor, { eps: [null, 1e-3] })).toBe('no error');
    expect(p.item()).not.toBe(1);
  });

  test('refuse what makes no sense', () => {
    const p = ones([1]).requiresGrad_();
    expect(() => new optim.Adam([p], { learningRate: 1 } as object)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adam: unknown option 'learningRate'; it takes lr, betas, eps, amsgrad, maximize, weightDecay, decoupledWeightDecay]`,
    );
    expect(() => new optim.Adam([p], { betas: [0.9, 1] })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adam: betas are two numbers of at least 0 and less than 1, got [0.9,1]]`,
    );
    expect(codeOf(() => new optim.SGD([p], { lr: -1 }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p], { nesterov: true }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([]))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p, p]))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p.mul(2)]))).toBe('NOT_LEAF');
    expect(codeOf(() => new optim.SGD([1 as unknown as Tensor]))).toBe('BAD_ARGUMENT');
  });
});
