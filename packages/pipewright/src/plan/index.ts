/** @file Planning: measured units, exact partitions, the search for the best pipeline, and its check against the run. */
export {
  type Compared,
  comparePlan,
  formatComparison,
  type PipelinePlan,
  type PlanComparison,
  type PlanParallel,
  type Prediction,
  readPlan,
  refitPlan,
  type StageCosts,
} from '@pipewright/schedule';
export { givenPlan } from './given-plan.ts';
export { type MeasuredLink, measureLink } from './link.ts';
export { type MeasuredStage, type MeasureStagesOptions, measureStages } from './measure-stages.ts';
export { type MeasureOptions, type MeasureUnitsOptions, measureUnits } from './measure-units.ts';
export { type Partition, type PartitionProblem, partition } from './partition.ts';
export { type PlannedStages, planStages } from './planned-stages.ts';
export { formatPlans, type Sensitivity, sensitivities } from './report.ts';
export {
  type Machine,
  type PlanOptions,
  type PlanResult,
  planPipeline,
  type UnitTable,
} from './search.ts';
export { rankPlans, settlePlan, worthTrying } from './settle.ts';
export { type PlanTrial, type TryPlanOptions, type TryPlansOptions, tryPlan, tryPlans } from './trial.ts';
export type { UnitCosts } from './unit-costs.ts';
