// @ts-check
/** @file Datasets that tests have worker threads make. */
/** Samples that tell their numbers; some do not come, as the test says. */
class Numbers {
  /** @param {{ length: number, fail?: number, die?: number, slow?: boolean, clone?: boolean, promise?: boolean }} how */
  constructor(how) {
    this.how = how;
    this.length = how.length;
  }
  /** @param {number} index @returns {any} */
  getItem(index) {
    const { fail, die, clone, promise } = this.how;
    if (index === fail) throw new Error('this file is broken');
    if (index === die) process.exit(3);
    if (clone) return () => 1;
    const sample = { index, row: Float32Array.of(index, index + 0.5) };
    return promise ? new Promise((resolve) => setTimeout(() => resolve(sample), 1)) : sample;
  }
}

/** A stream that can go to a place, or cannot. */
class Stream {
  /** @param {{ length: number, seeks?: boolean }} how */
  constructor({ length, seeks }) {
    this.size = length;
    this.at = 0;
    this.next = 0;
    if (seeks) {
      this.stateDict = () => ({ at: this.at });
      this.loadStateDict = (/** @type {any} */ state) => {
        this.next = state.at;
      };
    }
  }
  *[Symbol.iterator]() {
    const from = this.next;
    this.next = 0;
    for (let i = from; i < this.size; i++) {
      this.at = i + 1;
      yield { index: i };
    }
  }
}

/** @param {any} how */
export function dataset(how) {
  if (how.missing) throw new Error('there is no such file');
  return how.stream ? new Stream(how) : new Numbers(how);
}
