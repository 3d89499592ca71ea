/**
 * @file How long the search for a plan takes, in processor time. No model is run: units have made-up costs.
 *
 * node bench/plan-search.mjs [--only NAME]
 */
import { planPipeline } from 'pipewright';

/**
 * Layers of one size between a cheap beginning and an expensive end, as language models are.
 * @param {number} count @param {number} rows @returns {import('pipewright').UnitCosts[]}
 */
function units(count, rows) {
  return Array.from({ length: count }, (_, i) => {
    const weight = i === 0 ? 0.3 : i === count - 1 ? 2.5 : 1 + 0.1 * Math.sin(i);
    return {
      name: i === 0 ? 'embed' : i === count - 1 ? 'head' : `layers.${i - 1}`,
      begins: `node_${i}`,
      F: 1e-3 * weight * rows,
      I: 1.2e-3 * weight * rows,
      W: 0.9e-3 * weight * rows,
      activation: 1e6 * rows,
      retained: 4e5 * rows,
      input: 1e5 * rows,
      parameters: 2e6 * weight,
    };
  });
}

const link = { bandwidth: 1e10, latency: 1e-5 };
/** @param {number} count @param {readonly number[]} sizes */
const tables = (count, sizes = [1]) => sizes.map((rows) => ({ rows, units: units(count, rows) }));

/** @type {Record<string, import('pipewright').PlanOptions>} */
const cases = {
  '8 ranks, 48 layers, 64 microbatches': { machine: { ranks: 8 }, tables: tables(50), batch: 64 },
  '8 ranks, 48 layers, 64 microbatches, 130 MB, all meshes': {
    machine: { ranks: 8, memory: 130e6, ...link },
    tables: tables(50),
    batch: 64,
    replicas: 'all',
  },
  '8 ranks, 48 layers, 16 to 128 microbatches, 130 MB, all meshes': {
    machine: { ranks: 8, memory: 130e6, ...link },
    tables: tables(50, [1, 2, 4, 8]),
    batch: 128,
    replicas: 'all',
  },
  '64 ranks, 256 units, 256 microbatches': { machine: { ranks: 64, ...link }, tables: tables(256), batch: 256 },
  '64 ranks, 256 units, 256 microbatches, 150 MB': {
    machine: { ranks: 64, memory: 150e6, ...link },
    tables: tables(256),
    batch: 256,
  },
  '64 ranks, 256 units, 512 microbatches, 100 MB, all meshes': {
    machine: { ranks: 64, memory: 100e6, ...link },
    tables: tables(256),
    batch: 512,
    replicas: 'all',
  },
};

const at = process.argv.indexOf('--only');
const only = at < 0 ? '' : (process.argv[at + 1] ?? '');
console.log(
  '| case | processor s | pipelines simulated | best | mesh | step ms |\n| --- | --- | --- | --- | --- | --- |',
);
for (const [name, options] of Object.entries(cases)) {
  if (!name.includes(only)) continue;
  const before = process.cpuUsage();
  let result;
  try {
    result = planPipeline(options);
  } catch (error) {
    result = /** @type {Error} */ (error);
  }
  const { user, system } = process.cpuUsage(before);
  const seconds = ((user + system) / 1e6).toFixed(1);
  if (result instanceof Error) {
    console.log(`| ${name} | ${seconds} | | ${result.message} | | |`);
    continue;
  }
  const [best] = result.plans;
  console.log(
    `| ${name} | ${seconds} | ${result.simulated} | ${best?.schedule}, ${best?.stages} stages, ${best?.microbatches} x ${best?.rows} | ${best?.ranks} x ${best?.dataParallel?.replicas ?? 1} ${best?.dataParallel?.level ?? ''} | ${((best?.predicted.step ?? 0) * 1000).toFixed(1)} |`,
  );
}
