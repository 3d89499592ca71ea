/** @file Saving: what is kept, what is refused, and what happens when the disk does not want it. */
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Generator, liveTensors, loadSafetensors, nn, optim, rand, scope, tensor } from '@pipewright/torch';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { SmallRun } from '../../../testing/checkpoint/small-run.ts';
import { asOrdinaryUser, mountSmallDisk } from '../../../testing/special-files.ts';
import { PipelineStage } from '../../stage/pipeline-stage.ts';
import { findCheckpoint, hasCheckpoint, listCheckpoints } from '../format/folder.ts';
import { loadCheckpoint } from '../reading/load.ts';
import { saveCheckpoint } from './save.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-save-'));
const disk = mountSmallDisk();
afterAll(() => {
  disk?.unmount();
  rmSync(root, { recursive: true });
});
let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(root, 'case-'));
});
const run = new SmallRun();

describe('a save', () => {
  test('is files that others read, and says how long training waited', () => {
    const save = saveCheckpoint(folder, {
      ...run.state,
      step: 12,
      schedule: '1F1B',
      files: { 'config.json': { model_type: 'mine' } },
    }).wait();
    expect(save.path).toBe(`${folder}/step-00000012`);
    expect(save.stallMs).toBeGreaterThan(0);
    expect(String(save)).toMatch(/: 0\.0 MB of this rank, training waited [\d.]+ ms, complete after \d+ ms$/);
    expect(readdirSync(folder).sort()).toEqual(['latest', 'step-00000012']);
    expect(readdirSync(save.path).sort()).toEqual([
      'config.json',
      'manifest.json',
      'model-00001-of-00001.safetensors',
      'model.safetensors.index.json',
      'optimizer-00001-of-00001.safetensors',
    ]);
    const { manifest } = findCheckpoint(folder);
    expect(manifest).toMatchObject({
      step: 12,
      finite: true,
      schedule: '1F1B',
      layout: { ranks: 1, stages: 1, stagesOfRank: [[0]] },
    });
    expect(JSON.parse(readFileSync(join(save.path, 'model.safetensors.index.json'), 'utf8'))).toEqual({
      metadata: { total_size: 92 },
      weight_map: Object.fromEntries(
        ['0.bias', '0.weight', '1.bias', '1.weight'].map((name) => [name, 'model-00001-of-00001.safetensors']),
      ),
    });
    scope(() => {
      const weights = loadSafetensors(join(save.path, 'model-00001-of-00001.safetensors'));
      expect(weights.get('1.weight')?.toArray()).toEqual(
        (run.stages.module as nn.Sequential).getParameter('1.weight').toArray(),
      );
    });
  });

  test('leaves no tensor behind, and the state is that of its moment', () => {
    run.value = 3;
    const before = liveTensors();
    const save = saveCheckpoint(folder, { ...run.state, step: 3 });
    run.value = 99; // training goes on
    save.wait();
    loadCheckpoint(folder, run.state);
    expect(run.value).toBe(3);
    // The memory of the copies stays for the next save: one tensor for each file.
    expect(liveTensors() - before).toBeLessThanOrEqual(2);
  });

  test('keeps the newest, and never rotates healthy ones away for one that is not finite', () => {
    run.value = 1;
    for (const step of [1, 2, 3, 4]) saveCheckpoint(folder, { ...run.state, step, keep: 2 }).wait();
    expect(listCheckpoints(folder)).toEqual(['step-00000003', 'step-00000004']);
    run.value = Number.NaN;
    for (const step of [5, 6, 7]) saveCheckpoint(folder, { ...run.state, step, keep: 2 }).wait();
    expect(listCheckpoints(folder)).toEqual(['step-00000003', 'step-00000004', 'step-00000007']);
    expect(findCheckpoint(folder).manifest).toMatchObject({ step: 4, finite: true });
    run.value = 8;
    saveCheckpoint(folder, { ...run.state, step: 8, keep: 2 }).wait();
    expect(listCheckpoints(folder)).toEqual(['step-00000004', 'step-00000007', 'step-00000008']);
    // The same step once more, after a restart from an earlier one.
    run.value = 9;
    saveCheckpoint(folder, { ...run.state, step: 8, keep: 1 }).wait();
    expect(listCheckpoints(folder)).toEqual(['step-00000007', 'step-00000008-2']);
    loadCheckpoint(folder, run.state);
    expect(run.value).toBe(9);
  });

  test('has schedulers, scalers, loaders, generators and whatever else', () => {
    const make = (): {
      generator: Generator;
      scheduler: optim.StepLR;
      loader: { at: number; stateDict(): object; loadStateDict(state: { at: number }): void };
    } => ({
      generator: new Generator().manualSeed(3),
      scheduler: new optim.StepLR(run.optimizer, 2),
      loader: {
        at: 0,
        stateDict() {
          return { at: this.at, odd: [Number.POSITIVE_INFINITY, -0, 2n ** 70n, undefined], table: new Map([[1, 'x']]) };
        },
        loadStateDict(state: { at: number }) {
          expect(state).toEqual(this.stateDict.call({ at: state.at } as never));
          this.at = state.at;
        },
      },
    });
    scope(() => {
      const first = make();
      rand([5], { generator: first.generator });
      first.scheduler.step();
      first.loader.at = 17;
      const { generator, scheduler, loader } = first;
      const user = { epoch: 3, best: tensor([1.5, 2]), note: 'né' };
      saveCheckpoint(folder, { ...run.state, scheduler, loader, generators: { g: generator }, user, step: 1 }).wait();
      const expected = rand([4], { generator }).toArray();
      const second = make();
      const loaded = loadCheckpoint(folder, {
        ...run.state,
        scheduler: second.scheduler,
        loader: second.loader,
        generators: { g: second.generator },
      });
      expect(rand([4], { generator: second.generator }).toArray()).toEqual(expected);
      expect(second.loader.at).toBe(17);
      expect(second.scheduler.stateDict()).toEqual(scheduler.stateDict());
      const again = loaded.user as typeof user;
      expect([again.epoch, again.best.toArray(), again.note]).toEqual([3, [1.5, 2], 'né']);
    });
  });
});

describe('what goes wrong', () => {
  test('names that clash', () => {
    const stages = [0, 1].map((index) => new PipelineStage(new nn.Sequential(new nn.Linear(2, 2)), index, 2));
    expect(() => saveCheckpoint(folder, { stages, step: 1 })).toThrow(
      "'0.weight' is in stage 0 and in stage 1, and they are not tied",
    );
    const named = [0, 1].map(
      (index) =>
        new PipelineStage(new nn.Sequential(new nn.Linear(2, 2)), index, 2, { names: { '': `blocks.${index}` } }),
    );
    saveCheckpoint(folder, { stages: named, step: 1 }).wait();
    expect(Object.keys(findCheckpoint(folder).manifest.tensors)).toEqual([
      ...['blocks.0.0.bias', 'blocks.0.0.weight', 'blocks.1.0.bias', 'blocks.1.0.weight'],
    ]);
  });

  test('a parameter in two optimizers, whose states would be mixed', () => {
    const { stages } = run;
    const all = stages.module.parameters();
    const make = (parameters: nn.Parameter[]): optim.SGD => new optim.SGD(parameters, { lr: 0.1, momentum: 0.9 });
    const both = { stages, optimizer: [make(all), make(all.slice(2))] };
    const message =
      "'1.weight' is in optimizer 0 and in optimizer 1, but a checkpoint holds what one optimizer remembers of a parameter; give each parameter to one optimizer";
    expect(() => saveCheckpoint(folder, { ...both, step: 1 })).toThrow(message);
    expect(hasCheckpoint(folder)).toBe(false);
    const apart = { stages, optimizer: [make(all.slice(0, 2)), make(all.slice(2))] };
    saveCheckpoint(folder, { ...apart, step: 1 }).wait();
    expect(() => loadCheckpoint(folder, both)).toThrow(message);
    expect(loadCheckpoint(folder, apart).step).toBe(1);
  });

  test('options that make no sense', () => {
    const calls: [unknown, string][] = [
      [{ ...run.state, step: -1 }, 'step is -1'],
      [{ ...run.state, steps: 1 }, "unknown option 'steps' (did you mean 'step'?)"],
      [{ step: 1, stages: 3 }, 'stages is 3'],
      [{ ...run.state, step: 1, loader: {} }, 'loader is an object with nothing in it'],
      [{ ...run.state, step: 1, keep: 0 }, 'keep is 0'],
      [{ ...run.state, step: 1, files: { '../x': '' } }, "files cannot have '../x'"],
      [{ ...run.state, step: 1, user: { f: () => 0 } }, 'user.f is the function f, which cannot be stored'],
      [
        { step: 1, stages: run.stages, optimizer: new optim.SGD([new nn.Parameter(tensor([1.5]))]) },
        'no stage of this rank',
      ],
    ];
    for (const [options, message] of calls)
      expect(() => saveCheckpoint(folder, options as Parameters<typeof saveCheckpoint>[1])).toThrow(message);
    expect(hasCheckpoint(folder)).toBe(false);
    expect(() => loadCheckpoint(folder, run.state)).toThrow(`there is no complete checkpoint in ${folder}`);
  });

  test('a lost folder is an error with a way out, and the next save is good', () => {
    writeFileSync(join(folder, 'file'), '');
    const save = saveCheckpoint(join(folder, 'file', 'inside'), { ...run.state, step: 1 });
    expect(() => save.wait()).toThrow(/was not written: part of the path is not a folder; the run goes on/);
    expect(save.error?.code).toBe('CANNOT_SAVE');
    saveCheckpoint(folder, { ...run.state, step: 2 }).wait();
    expect(loadCheckpoint(folder, run.state).step).toBe(2);
  });

  test('a folder that must not be written: what is there stays, and it can be saved again when it may be', () => {
    for (const path of [root, folder]) chmodSync(path, 0o755);
    saveCheckpoint(folder, { ...run.state, step: 1 }).wait(); // also: the thread that writes has loaded its files
    chmodSync(folder, 0o555);
    asOrdinaryUser(() => {
      expect(() => saveCheckpoint(folder, { ...run.state, step: 2 }).wait()).toThrow(
        /was not written: permission denied.*the run goes on/,
      );
      expect(loadCheckpoint(folder, run.state).step).toBe(1);
    });
    expect(readdirSync(folder).sort()).toEqual(['latest', 'step-00000001']);
    chmodSync(folder, 0o755);
    saveCheckpoint(folder, { ...run.state, step: 3 }).wait();
    expect(loadCheckpoint(folder, run.state).step).toBe(3);
  });

  test.skipIf(disk === null)('a full disk: earlier checkpoints stay, half of a new one does not', () => {
    const place = join((disk as { folder: string }).folder, 'run');
    const user = { text: 'x'.repeat(200_000) };
    saveCheckpoint(place, { ...run.state, step: 1 }).wait();
    expect(() => saveCheckpoint(place, { ...run.state, step: 2, user }).wait()).toThrow('the disk is full');
    expect(readdirSync(place).sort()).toEqual(['latest', 'step-00000001']);
    expect(loadCheckpoint(place, run.state).step).toBe(1);
    saveCheckpoint(place, { ...run.state, step: 3, keep: 1 }).wait();
    expect(loadCheckpoint(place, run.state).step).toBe(3);
  });
});
