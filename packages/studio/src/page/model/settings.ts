/** @file What is on screen, as the address holds it: short, readable, and safe to read from anybody. */

/** The views of the page. */
export const views = ['explore', 'edit', 'live', 'files'] as const;

/** One of the views. */
export type View = (typeof views)[number];

/** Costs that the sliders set; a list has a number for each stage. */
export interface CostSettings {
  readonly F: readonly number[];
  readonly I: readonly number[];
  readonly W: readonly number[];
  readonly comm: number;
  /** Memory of one microbatch on one stage. */
  readonly activation: readonly number[];
  /** Memory of the parameters, gradients and optimizer states of one stage. */
  readonly parameters: number;
}

/** All settings. */
export interface Settings {
  readonly view: View;
  readonly schedule: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
  readonly costs: CostSettings;
  /** Memory a rank may use; 0: no limit. */
  readonly limit: number;
  /** Whether sends and receives are shown as actions. */
  readonly lowered: boolean;
  /** Schedules shown below the main one. */
  readonly compare: readonly string[];
  /** Column by which the table is sorted; a minus before it turns it round. */
  readonly sort: string;
}

/** What the page begins with. */
export const defaults: Settings = {
  view: 'explore',
  schedule: '1F1B',
  ranks: 4,
  stagesPerRank: 1,
  microbatches: 8,
  costs: { F: [1], I: [1], W: [1], comm: 0, activation: [1], parameters: 0 },
  limit: 0,
  lowered: false,
  compare: [],
  sort: 'makespan',
};

const most = { ranks: 1024, stagesPerRank: 64, microbatches: 4096, list: 1024, compare: 32, text: 20_000 };

/**
 * Settings as the text behind `#`; what is as at the beginning is left out.
 * @example formatSettings({ ...defaults, ranks: 8 }) // 'ranks=8'
 */
export function formatSettings(settings: Settings): string {
  const parts: string[] = [];
  const add = (name: string, value: string, usual: string): void => {
    if (value !== usual) parts.push(`${name}=${encodeURIComponent(value).replaceAll('%2C', ',')}`);
  };
  const list = (values: readonly number[]): string => values.map(String).join(',');
  add('view', settings.view, defaults.view);
  add('schedule', settings.schedule, defaults.schedule);
  add('ranks', String(settings.ranks), String(defaults.ranks));
  add('stages', String(settings.stagesPerRank), String(defaults.stagesPerRank));
  add('microbatches', String(settings.microbatches), String(defaults.microbatches));
  for (const name of ['F', 'I', 'W', 'activation'] as const)
    add(name, list(settings.costs[name]), list(defaults.costs[name]));
  add('comm', String(settings.costs.comm), String(defaults.costs.comm));
  add('parameters', String(settings.costs.parameters), String(defaults.costs.parameters));
  add('limit', String(settings.limit), String(defaults.limit));
  add('lowered', settings.lowered ? '1' : '0', defaults.lowered ? '1' : '0');
  add('compare', settings.compare.join(','), defaults.compare.join(','));
  add('sort', settings.sort, defaults.sort);
  return parts.join('&');
}

/** Reads what `formatSettings` wrote; anything that is not understood or out of range is as at the beginning. */
export function parseSettings(text: string): Settings {
  const fields = new Map<string, string>();
  for (const part of text.replace(/^#/, '').slice(0, most.text).split('&')) {
    const at = part.indexOf('=');
    if (at <= 0) continue;
    try {
      fields.set(part.slice(0, at), decodeURIComponent(part.slice(at + 1)));
    } catch {
      // not written by us
    }
  }
  const whole = (name: string, usual: number, limit: number): number => {
    const value = Number(fields.get(name));
    return fields.has(name) && Number.isInteger(value) && value >= 1 && value <= limit ? value : usual;
  };
  const amount = (name: string, usual: number): number => {
    const value = Number(fields.get(name));
    return fields.has(name) && fields.get(name) !== '' && value >= 0 && value <= 1e12 ? value : usual;
  };
  const list = (name: string, usual: readonly number[]): readonly number[] => {
    const values = (fields.get(name) ?? '').split(',').map((item) => (item === '' ? Number.NaN : Number(item)));
    return values.length <= most.list && values.every((value) => value >= 0 && value <= 1e12) ? values : usual;
  };
  const word = (name: string, usual: string): string => {
    const value = fields.get(name) ?? '';
    return /^[\w+-]{1,40}$/.test(value) ? value : usual;
  };
  const { costs } = defaults;
  return {
    view: views.find((view) => view === fields.get('view')) ?? defaults.view,
    schedule: word('schedule', defaults.schedule),
    ranks: whole('ranks', defaults.ranks, most.ranks),
    stagesPerRank: whole('stages', defaults.stagesPerRank, most.stagesPerRank),
    microbatches: whole('microbatches', defaults.microbatches, most.microbatches),
    costs: {
      F: list('F', costs.F),
      I: list('I', costs.I),
      W: list('W', costs.W),
      comm: amount('comm', costs.comm),
      activation: list('activation', costs.activation),
      parameters: amount('parameters', costs.parameters),
    },
    limit: amount('limit', defaults.limit),
    lowered: fields.get('lowered') === '1',
    compare: (fields.get('compare') ?? '')
      .split(',')
      .filter((name) => /^[\w+-]{1,40}$/.test(name))
      .slice(0, most.compare),
    sort: word('sort', defaults.sort),
  };
}
