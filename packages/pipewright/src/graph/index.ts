/** @file Models as graphs: data, rules, text, execution, `.pt2` files. */

export { type Expression, evaluate, parseExpression } from './expression.ts';
export * from './graph.ts';
export * from './graph-builder.ts';
export { GraphModule, type GraphModuleOptions, type GraphState } from './graph-module.ts';
export * from './print-graph.ts';
export * from './validate-graph.ts';
