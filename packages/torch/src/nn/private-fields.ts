/** @file Private fields (`#x`) of modules, which a copy cannot have. */
import { TorchError } from '../base/errors.ts';

/** Refuses an object whose classes, up to the one of `base`, declare private fields: a copy would have none of them, and its methods would fail. */
export function refusePrivateFields(module: object, base: object): void {
  for (
    let at = Object.getPrototypeOf(module) as object;
    at !== base && at !== null;
    at = Object.getPrototypeOf(at) as object
  ) {
    const field = privateFieldOf(at.constructor);
    if (field !== null)
      throw new TorchError(
        'UNSUPPORTED_TYPE',
        `clone: ${at.constructor.name} has the private field ${field}, which cannot be copied; declare it with 'private' instead of '#', or write clone() { … } in the class`,
      );
  }
}

const privateFields = new WeakMap<object, string | null>();

/** The first `#name` in the text of a class, outside of comments and strings. */
function privateFieldOf(made: object): string | null {
  const known = privateFields.get(made);
  if (known !== undefined) return known;
  const text = Function.prototype.toString.call(made);
  const code = text.replace(/\/\*[\s\S]*?\*\/|\/\/.*|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`/g, '');
  const found = /#[A-Za-z_$][\w$]*/.exec(code)?.[0] ?? null;
  privateFields.set(made, found);
  return found;
}
