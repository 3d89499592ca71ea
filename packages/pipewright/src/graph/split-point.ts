/** @file Where stages end: marks in the model's code, or modules by name. */
import { nn } from '@pipewright/torch';
import { checkArgument, checkChoice, didYouMean, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';
import { pipeSplit } from './mark.ts';

/**
 * Before a module, or after it.
 *
 * @example pipeline(model, { mbArgs: [x], splitSpec: { 'layers.4': SplitPoint.BEGINNING } })
 */
export const SplitPoint = {
  /** A stage ends before the module's forward. */
  BEGINNING: 'beginning',
  /** A stage ends after the module's forward. */
  END: 'end',
} as const;

/** Before a module, or after it. */
export type SplitPoint = (typeof SplitPoint)[keyof typeof SplitPoint];

/** Where stages end: qualified names of modules, and whether before or after them. */
export type SplitSpec = Readonly<Record<string, SplitPoint>>;

/** Whether stages end before and after a module. */
export interface ModuleBorders {
  readonly before: boolean;
  readonly after: boolean;
}

const annotations = new WeakMap<nn.Module, ModuleBorders>();

/**
 * Marks modules of a model, so that stages end there whenever it is traced. The model itself stays as it is; marking the
 * same place twice is marking it once. The result takes the marks away again.
 *
 * @example annotateSplitPoints(model, { 'layers.4': SplitPoint.BEGINNING })
 */
export function annotateSplitPoints(model: nn.Module, spec: SplitSpec): { remove(): void } {
  const undo = [...bordersOf(model, spec)].map(([name, borders]) => {
    const part = findModule(model, name);
    const before = annotations.get(part);
    annotations.set(part, joined(before, borders));
    return () => (before === undefined ? annotations.delete(part) : annotations.set(part, before));
  });
  return { remove: () => undo.toReversed().forEach((each) => each()) };
}

/** The borders of the modules that a specification names, by name. */
export function bordersOf(model: nn.Module, spec: SplitSpec): Map<string, ModuleBorders> {
  checkArgument('annotateSplitPoints', model instanceof nn.Module, ['the model', model], 'a module');
  if (!isPlainObject(spec))
    throw new PipelineError(
      'BAD_OPTION',
      `splitSpec is ${show(spec)}; give module names: { 'layers.4': SplitPoint.BEGINNING }`,
    );
  for (const name of Object.keys(spec)) findModule(model, name);
  return new Map(Object.entries(spec).map(([name, point]) => [name, pointBorders(name, point)]));
}

/** The borders of a model's modules that were marked with `annotateSplitPoints`. */
export function annotatedBorders(model: nn.Module): Map<nn.Module, ModuleBorders> {
  return new Map(
    model.modules().flatMap((part) => {
      const found = annotations.get(part);
      return found === undefined ? [] : [[part, found] as const];
    }),
  );
}

/** What a split point says of the module of that name. */
export function pointBorders(name: string, point: unknown): ModuleBorders {
  const checked = checkChoice('splitSpec', `the split point of '${name}'`, point, Object.values(SplitPoint));
  return { before: checked === SplitPoint.BEGINNING, after: checked === SplitPoint.END };
}

/** Borders that were asked for in two places. */
export function joined(a: ModuleBorders | undefined, b: ModuleBorders): ModuleBorders {
  return a === undefined ? b : { before: a.before || b.before, after: a.after || b.after };
}

function findModule(model: nn.Module, name: string): nn.Module {
  try {
    return model.getSubmodule(name);
  } catch (cause) {
    const known = model
      .namedModules()
      .map(([path]) => path)
      .filter((path) => path !== '');
    throw new PipelineError(
      'UNKNOWN_MODULE',
      `splitSpec: the model has no module '${name}'${didYouMean(name, known)}; names are as in namedModules(): ${known.slice(0, 8).join(', ')}${known.length > 8 ? ', …' : ''}`,
      { name },
      { cause },
    );
  }
}

/**
 * A Sequential whose modules are one stage each.
 *
 * @example pipeline(PipeSequential.fromSequential(model), { mbArgs: [x] }).numStages // as many as model has modules
 */
export class PipeSequential extends nn.Sequential {
  /** The modules of a Sequential, with their names, one stage each. */
  static fromSequential(sequential: nn.Sequential): PipeSequential {
    if (!(sequential instanceof nn.Sequential))
      throw new PipelineError(
        'BAD_ARGUMENT',
        `PipeSequential.fromSequential: expected a Sequential, got ${show(sequential)}`,
      );
    return new PipeSequential(sequential.members().children);
  }

  override forward(input: Parameters<nn.Sequential['forward']>[0]): ReturnType<nn.Sequential['forward']> {
    let value: unknown = input;
    let isFirst = true;
    for (const module of this) {
      if (!isFirst) pipeSplit();
      isFirst = false;
      value = (module as unknown as { forward(given: unknown): unknown }).forward(value);
    }
    return value as ReturnType<nn.Sequential['forward']>;
  }
}
