/** @file Finding, fetching and building the engine; importing this loads no libtorch. */
export { AddonError, type AddonErrorCode } from './base/addon-error.ts';
export { findPlaces, type Places } from './base/places.ts';
export { LineProgress, type Progress, silent } from './base/progress.ts';
export { type DoctorOptions, diagnose, type Finding, formatReport, type Health, type Report } from './doctor.ts';
export { type FindResult, findLibtorch, type Libtorch } from './libtorch/find-libtorch.ts';
export { type LoadOptions, loadAddon, loadCudaAddon } from './load-addon.ts';
export { runSetup, type SetupOptions, type SetupResult } from './run-setup.ts';
