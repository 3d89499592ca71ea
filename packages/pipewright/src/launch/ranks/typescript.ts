/** @file Lets a rank import TypeScript where Node itself does not: before 22.18, with the user's own compiler. */
import { register } from 'node:module';
import { checkPath } from '../../base/checks.ts';

let registered = false;

/** Whether a script is written in TypeScript. */
function isTypeScript(script: string): boolean {
  return /\.m?ts$/.test(script);
}

/** From now on, this thread imports TypeScript; nothing to do where Node can, or where the script is JavaScript. */
export function allowTypeScript(script: string): void {
  checkPath('allowTypeScript', 'the script', script);
  const { features } = process as unknown as { readonly features: { readonly typescript?: unknown } };
  if (registered || !isTypeScript(script) || Boolean(features.typescript)) return;
  registered = true;
  process.setSourceMapsEnabled(true);
  register(new URL(`./typescript-hooks${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url));
}
