/** @file Models as graphs: data, rules, text, execution, `.pt2` files. */
export * from './graph.ts';
export * from './graph-builder.ts';
export * from './print-graph.ts';
export * from './validate-graph.ts';
