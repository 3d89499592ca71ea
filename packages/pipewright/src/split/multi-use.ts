/** @file Parameters that several stages use: what the caller wants done with each, checked. */
import { checkChoice, checkOptions, didYouMean, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';

/** Parameters that several stages use: each has its own copy and gradients are summed, or one sends it to the others. */
export const MultiUseParameterConfig = {
  /** One stage owns it, the first that uses it if nothing else is said, and sends it along with the activations. */
  TRANSMIT: 'transmit',
  /** Every stage that uses it holds a copy; gradients are summed over the copies. */
  REPLICATE: 'replicate',
} as const;

/** What happens to a parameter that several stages use. */
export type MultiUseParameterConfig = (typeof MultiUseParameterConfig)[keyof typeof MultiUseParameterConfig];

/** What happens to one parameter, and which stage owns it. @example { use: 'replicate', owner: 3 } */
export interface MultiUseRule {
  /** Default: replicated. */
  readonly use?: MultiUseParameterConfig | undefined;
  /** The stage that holds the model's own tensor: the others have copies of it, or get it sent. Default: the first user. */
  readonly owner?: number | undefined;
}

/** One rule for all parameters, or one per parameter name; those not named are replicated. */
export type MultiUseParamSpec =
  | MultiUseParameterConfig
  | Readonly<Record<string, MultiUseParameterConfig | MultiUseRule>>;

/** The rules, by parameter. */
export class MultiUseRules {
  private readonly all: MultiUseParameterConfig;
  private readonly byName = new Map<string, MultiUseRule>();

  /** `canonical` gives one name to names of the same tensor. */
  constructor(spec: MultiUseParamSpec | undefined, names: ReadonlySet<string>, canonical: (name: string) => string) {
    const choices = Object.values(MultiUseParameterConfig);
    if (spec === undefined || typeof spec === 'string') {
      this.all = checkChoice('splitGraph', 'multiUse', spec ?? MultiUseParameterConfig.REPLICATE, choices);
      return;
    }
    this.all = MultiUseParameterConfig.REPLICATE;
    if (!isPlainObject(spec))
      throw new PipelineError(
        'BAD_OPTION',
        `splitGraph: multiUse is ${show(spec)}; give 'transmit' or 'replicate', or one for each parameter: { 'embed.weight': 'transmit' }`,
        { option: 'multiUse', value: spec },
      );
    for (const [name, given] of Object.entries(spec)) {
      if (!names.has(name) && canonical(name) === name) throw unknownParameter(name, names);
      const rule: MultiUseRule = isPlainObject(given) ? given : { use: given as MultiUseParameterConfig };
      const where = `splitGraph: multiUse['${name}']`;
      checkOptions(where, rule, ['use', 'owner']);
      const use =
        rule.use === undefined ? MultiUseParameterConfig.REPLICATE : checkChoice(where, 'use', rule.use, choices);
      if (rule.owner !== undefined && !(Number.isSafeInteger(rule.owner) && rule.owner >= 0))
        throw new PipelineError('BAD_OPTION', `${where}: owner is ${show(rule.owner)}; give the number of a stage`);
      this.byName.set(canonical(name), { use, owner: rule.owner });
    }
  }

  /** What happens to the parameter of that canonical name. */
  useOf(name: string): MultiUseParameterConfig {
    return this.byName.get(name)?.use ?? this.all;
  }

  /** The stage that owns a parameter which the given stages use. */
  ownerOf(name: string, users: ReadonlySet<number>): number {
    const first = Math.min(...users);
    const owner = this.byName.get(name)?.owner;
    if (owner === undefined) return first;
    const list = [...users].sort((a, b) => a - b).join(', ');
    const isSent = users.size > 1 && this.useOf(name) === MultiUseParameterConfig.TRANSMIT;
    if (isSent ? owner <= first : users.has(owner)) return owner;
    throw new PipelineError(
      'BAD_OPTION',
      isSent
        ? `splitGraph: stage ${owner} cannot own '${name}' and send it to stages ${list}: values travel to later stages only; give an owner of at most ${first}, or use: 'replicate'`
        : `splitGraph: stage ${owner} cannot own '${name}', which stages ${list} use; give one of them`,
      { parameter: name, owner },
    );
  }
}

function unknownParameter(name: string, names: ReadonlySet<string>): PipelineError {
  const some = [...names].slice(0, 6).join(', ');
  return new PipelineError(
    'BAD_OPTION',
    `splitGraph: multiUse names '${name}', which is no parameter of the model${didYouMean(name, names)}; there are ${some || 'none'}${names.size > 6 ? ', …' : ''}`,
    { option: 'multiUse', name },
  );
}
