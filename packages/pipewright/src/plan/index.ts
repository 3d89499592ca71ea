/** @file Planning: measured units, exact partitions, the search for the best pipeline, and its check against the run. */
export { type Compared, comparePlan, type PlanComparison } from './compare.ts';
export { type MeasureOptions, measureUnits } from './measure-units.ts';
export { type Partition, type PartitionProblem, partition } from './partition.ts';
export { formatPlans, type Sensitivity, sensitivities } from './report.ts';
export {
  type Machine,
  type PipelinePlan,
  type PlanOptions,
  type PlanResult,
  type Prediction,
  planPipeline,
  type UnitTable,
} from './search.ts';
export type { StageCosts, UnitCosts } from './unit-costs.ts';
