// @ts-check
/**
 * @file Lanes on the CPU, for tests of what decides over them: like those of GPUs they carry no headers, keep their order, and
 * what was posted is worth nothing before it is waited for.
 */
import { full, noGrad, toDType } from '@pipewright/torch';

/** Where the tags of these lanes begin: above all others. */
const FIRST_TAG = 2 ** 41;

class HostLane {
  /** @param {any} group @param {number} peer @param {{ name: string, sends: boolean }} options */
  constructor(group, peer, { name, sends }) {
    this.channel = group.channel(peer);
    this.sends = sends;
    this.tag =
      FIRST_TAG + Array.from(name).reduce((sum, character) => (sum * 131 + character.charCodeAt(0)) % 2 ** 30, 7);
    /** @type {any[]} */
    this.posted = [];
    this.next = 0;
    this.isReady = false;
  }

  ready() {
    this.isReady = true;
  }

  /** @param {any[]} tensors */
  send(tensors) {
    if (!this.isReady || !this.sends) throw new Error('this lane does not send');
    this.channel.sendMessage(this.tag, { tensors: noGrad(() => tensors.map((tensor) => tensor.detach().clone())) });
  }

  /** @param {readonly number[]} format */
  recvPacked(format) {
    if (!this.isReady || this.sends) throw new Error('this lane does not receive');
    const tensors = [];
    for (let at = 0; at < format.length; at += 2 + /** @type {number} */ (format[at + 1])) {
      const shape = format.slice(at + 2, at + 2 + /** @type {number} */ (format[at + 1]));
      const dtype = toDType(/** @type {any} */ (names.get(/** @type {number} */ (format[at]))));
      tensors.push(full(shape, dtype.isFloatingPoint ? Number.NaN : 99, { dtype }));
    }
    const number = this.posted.push(tensors) - 1;
    return {
      tensors,
      wait: () => {
        while (this.next <= number) this.fill(this.posted[this.next++]);
      },
    };
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
 * The group, with lanes between its ranks for tensors of the CPU.
 * @template {object} T
 * @param {T} group
 * @returns {T}
 */
export function withHostLanes(group) {
  return new Proxy(group, {
    get(target, name) {
      if (name === 'hasLanes') return () => true;
      if (name === 'lane')
        return (/** @type {number} */ peer, /** @type {any} */ options) => new HostLane(target, peer, options);
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
