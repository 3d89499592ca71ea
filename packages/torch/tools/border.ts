/**
 * @file The numbers that TypeScript and C++ hand each other by position, under one name for both: gen-ops.ts writes
 * `native/core/generated/border.h` and `src/addon/generated/border.ts` from these lists.
 */

/** What the addon writes about a tensor into the shared array, in order; sizes and strides follow at fixed places. */
const metaFields = [
  'dims',
  'dtype',
  'deviceType',
  'deviceIndex',
  'requiresGrad',
  'isLeaf',
  'layout',
  'isContiguous',
  'numel',
  'itemSize',
  'storageOffset',
  'isInference',
] as const;

/** Where sizes begin, which is also where short lists of hot operators travel, and how many there may be. */
const sizesStart = 16;
const maxDims = 64;

/** Lists of hot operators that TypeScript hands over this way; longer ones take the general way. */
const longestList = 32;

/** The numbers of an optimizer's step: options by name, `betas.0` is the first of `betas`. */
const optimizers: Readonly<Record<string, readonly string[]>> = {
  sgd: ['lr', 'momentum', 'dampening', 'weightDecay', 'nesterov', 'maximize'],
  adam: ['lr', 'betas.0', 'betas.1', 'eps', 'weightDecay', 'amsgrad', 'maximize', 'decoupledWeightDecay'],
  adagrad: ['lr', 'lrDecay', 'weightDecay', 'eps', 'maximize'],
  rmsprop: ['lr', 'alpha', 'eps', 'weightDecay', 'momentum', 'centered', 'maximize'],
  adamax: ['lr', 'betas.0', 'betas.1', 'eps', 'weightDecay', 'maximize'],
  nadam: ['lr', 'betas.0', 'betas.1', 'eps', 'weightDecay', 'momentumDecay', 'decoupledWeightDecay', 'maximize'],
  radam: ['lr', 'betas.0', 'betas.1', 'eps', 'weightDecay', 'decoupledWeightDecay', 'maximize'],
  adadelta: ['lr', 'rho', 'eps', 'weightDecay', 'maximize'],
  rprop: ['lr', 'etas.0', 'etas.1', 'stepSizes.0', 'stepSizes.1', 'maximize'],
  asgd: ['lr', 'lambd', 'alpha', 't0', 'weightDecay', 'maximize'],
  adafactor: ['lr', 'beta2Decay', 'eps.0', 'eps.1', 'd', 'weightDecay', 'maximize'],
  muon: [
    'lr',
    'weightDecay',
    'momentum',
    'nesterov',
    'nsCoefficients.0',
    'nsCoefficients.1',
    'nsCoefficients.2',
    'eps',
    'nsSteps',
    'adjustLrFn',
    'maximize',
  ],
};

const longestStep = Math.max(...Object.values(optimizers).map((names) => names.length));

/** `betas.0` becomes `betas_0`, `weightDecay` `weight_decay`. */
function snake(name: string): string {
  return name.replace('.', '_').replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** `isLeaf` becomes `IS_LEAF`. */
function upper(name: string): string {
  return snake(name).toUpperCase();
}

/** The whole of native/core/generated/border.h. */
export function borderHeader(banner: string): string {
  const steps = Object.entries(optimizers).map(
    ([name, fields]) => `namespace ${name} {\nenum Number : size_t { ${fields.map(snake).join(', ')}, count };\n}\n`,
  );
  return `${banner}#pragma once

#include <cstddef>

namespace pw {

// What a tensor is, in the array shared with TypeScript; kMetaDims sizes from kMetaSizes on, then as many strides.
namespace meta_field {
enum Field : size_t { ${metaFields.map(snake).join(', ')}, count };
}
constexpr size_t kMetaSizes = ${sizesStart}, kMetaDims = ${maxDims}, kMetaLength = kMetaSizes + 2 * kMetaDims;
static_assert(meta_field::count <= kMetaSizes);

// Lists of hot operators travel in the same array.
constexpr size_t kHotList = kMetaSizes, kHotListLength = kMetaDims;

// The numbers of an optimizer's step.
namespace step_number {
${steps.join('')}constexpr size_t kLongest = ${longestStep};
}

}  // namespace pw
`;
}

/** The whole of src/addon/generated/border.ts. */
export function borderModule(banner: string): string {
  const fields = metaFields.map((name, i) => `export const META_${upper(name)} = ${i};\n`);
  const steps = Object.entries(optimizers).map(
    ([name, list]) => `  ${name}: [${list.map((field) => `'${field}'`).join(', ')}],\n`,
  );
  return `${banner}
// Places in the array that the addon shares: what \`meta\` says of a tensor.
${fields.join('')}/** Where the sizes begin; the strides follow after room for META_DIMS_LIMIT of them. */
export const META_SIZES = ${sizesStart};
export const META_DIMS_LIMIT = ${maxDims};
export const META_STRIDES = ${sizesStart + maxDims};

/** Where a list for a hot operator begins, and how long it may be. */
export const HOT_LIST = ${sizesStart};
export const HOT_LIST_LONGEST = ${longestList};

/** The numbers of an optimizer's step, by option; \`betas.0\` is the first of \`betas\`. */
export const stepNumbers = {
${steps.join('')}} as const;
export const STEP_NUMBERS_LONGEST = ${longestStep};
`;
}
