/** @file The mark of a stage's end in a model's own code: `pipeSplit`, and the callback that it reaches while a model is traced. */

type Listener = () => void;

let listener: Listener | null = null;

/**
 * Ends a stage here when the model is traced; does nothing when it runs.
 *
 * @example forward(x: Tensor) { const y = this.first.forward(x); pipeSplit(); return this.second.forward(y); }
 */
export function pipeSplit(): void {
  listener?.();
}

/** Runs `body`; every `pipeSplit` inside it calls `mark`. Of nested calls the innermost counts. */
export function onPipeSplit<T>(mark: () => void, body: () => T): T {
  const before = listener;
  listener = mark;
  try {
    return body();
  } finally {
    listener = before;
  }
}
