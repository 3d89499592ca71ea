// @ts-check
/**
 * @file Lanes on the CPU, for tests of what decides over them: like those of GPUs they carry no headers, keep their order, and
 * what was posted is worth nothing before it is waited for.
 */
import { full, noGrad, toDType } from '@pipewright/torch';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/** Where the tags of these lanes begin: above all others. */
const FIRST_TAG = 2 ** 41;

/** Messages of several lanes in one order: nothing goes before what was posted earlier has come. */
class HostStream {
  /** @type {(() => void)[]} */
  posted = [];
  next = 0;

  /** @param {() => void} come @returns {() => void} what lets it come, after all that was posted before */
  post(come) {
    const number = this.posted.push(come) - 1;
    return () => this.comeTo(number);
  }

  /** @param {number} number */
  comeTo(number) {
    while (this.next <= number) /** @type {() => void} */ (this.posted[this.next++])();
  }
}

class HostLane {
  /** @param {any} group @param {number} peer @param {{ name: string, sends: boolean }} options @param {HostStream} stream */
  constructor(group, peer, { name, sends }, stream) {
    this.stream = stream;
    this.channel = group.channel(peer);
    this.sends = sends;
    this.tag =
      FIRST_TAG + Array.from(name).reduce((sum, character) => (sum * 131 + character.charCodeAt(0)) % 2 ** 30, 7);
    this.isReady = false;
  }

  ready() {
    this.isReady = true;
  }

  /** @param {any[]} tensors */
  send(tensors) {
    if (!this.isReady || !this.sends) throw new Error('this lane does not send');
    this.stream.comeTo(this.stream.posted.length - 1);
    this.channel.sendMessage(this.tag, { tensors: noGrad(() => tensors.map((tensor) => tensor.detach().clone())) });
  }

  /** @param {readonly number[]} format */
  recvPacked(format) {
    if (!this.isReady || this.sends) throw new Error('this lane does not receive');
    /** @type {Tensor[]} */
    const tensors = [];
    for (let at = 0; at < format.length; at += 2 + /** @type {number} */ (format[at + 1])) {
      const shape = format.slice(at + 2, at + 2 + /** @type {number} */ (format[at + 1]));
      const dtype = toDType(/** @type {any} */ (names.get(/** @type {number} */ (format[at]))));
      tensors.push(full(shape, dtype.isFloatingPoint ? Number.NaN : 99, { dtype }));
    }
    return { tensors, wait: this.stream.post(() => this.fill(tensors)) };
  }

  /** @param {any[]} tensors */
  fill(tensors) {
    const { tensors: come } = this.channel.recvMessage(this.tag);
    if (come.length !== tensors.length) throw new Error(`${come.length} tensors came for ${tensors.length}`);
    noGrad(() =>
      tensors.forEach((tensor, i) => {
        const one = come[i];
        if (one.dtype !== tensor.dtype || one.shape.join() !== tensor.shape.join())
          throw new Error(`${one.dtype.name}[${one.shape}] came for ${tensor.dtype.name}[${tensor.shape}]`);
        tensor.detach().copy_(one);
        one.dispose();
      }),
    );
  }

  join() {}
  mark() {}
  forget() {}
  close() {}
}

/** @type {Map<number, string>} */
const names = new Map(
  ['float64', 'float32', 'int64', 'bool'].map((name) => [toDType(/** @type {any} */ (name)).code, name]),
);

/**
 * The group, with lanes between its ranks for tensors of the CPU; with `oneStream` all of a rank's messages are in one order.
 * @template {object} T
 * @param {T} group
 * @param {{ oneStream?: boolean }} [options]
 * @returns {T}
 */
export function withHostLanes(group, { oneStream = false } = {}) {
  const shared = new HostStream();
  return new Proxy(group, {
    get(target, name) {
      if (name === 'hasLanes') return () => true;
      if (name === 'lane')
        return (/** @type {number} */ peer, /** @type {any} */ options) =>
          new HostLane(target, peer, options, oneStream ? shared : new HostStream());
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
