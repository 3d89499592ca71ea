/** @file What is on screen, as the address holds it: short, readable, and safe to read from anybody. */

/** The views of the page. */
export const views = ['explore', 'edit', 'live', 'files'] as const;

/** One of the views. */
export type View = (typeof views)[number];

/** Costs of a stage for one microbatch, in milliseconds and GB: one number, or one for each stage. */
export interface CostSettings {
  readonly F: readonly number[];
  readonly I: readonly number[];
  readonly W: readonly number[];
  /** The whole backward; empty: the sum of its halves. */
  readonly B: readonly number[];
  /** A message from a stage to another rank. */
  readonly comm: readonly number[];
  /** Memory of one microbatch on one stage. */
  readonly activation: readonly number[];
  /** Share of it that stays between the two halves of a backward. */
  readonly retained: readonly number[];
  /** Memory of the parameters, gradients and optimizer states of one stage. */
  readonly parameters: readonly number[];
  /** Memory that is added by the first backward of a stage, where gradients are not among its parameters. */
  readonly gradients: readonly number[];
}

/** The names of the costs, which are also those of the address. */
export const costNames: readonly (keyof CostSettings)[] = [
  'F',
  'I',
  'W',
  'B',
  'comm',
  'activation',
  'retained',
  'parameters',
  'gradients',
];

/** An action by its place; `group` counts the schedules that are shown. */
export interface SettingsCell {
  readonly group: number;
  readonly rank: number;
  readonly slot: number;
}

/** All settings. */
export interface Settings {
  readonly view: View;
  readonly schedule: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
  readonly costs: CostSettings;
  /** Memory that a rank may use, in GB: one number for all, or one for each rank; 0: no limit. */
  readonly limit: readonly number[];
  /** Whether sends and receives are shown as actions. */
  readonly lowered: boolean;
  /** Whether the critical path is highlighted. */
  readonly path: boolean;
  /** The selected action of Explore: its schedule among those shown, its rank, its slot; null: none. */
  readonly at: SettingsCell | null;
  /** Schedules shown below the main one. */
  readonly compare: readonly string[];
  /** Light or dark; `system`: as the reader's system prefers. */
  readonly theme: 'light' | 'dark' | 'system';
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
  costs: {
    F: [1],
    I: [1],
    W: [1],
    B: [],
    comm: [0],
    activation: [1],
    retained: [0.5],
    parameters: [0],
    gradients: [0],
  },
  limit: [0],
  lowered: false,
  path: false,
  at: null,
  compare: [],
  theme: 'system',
  sort: 'makespan',
};

const themes = ['light', 'dark', 'system'] as const;
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
  for (const name of costNames) add(name, list(settings.costs[name]), list(defaults.costs[name]));
  add('limit', list(settings.limit), list(defaults.limit));
  add('lowered', settings.lowered ? '1' : '0', defaults.lowered ? '1' : '0');
  add('path', settings.path ? '1' : '0', defaults.path ? '1' : '0');
  const { at } = settings;
  add('at', at === null ? '' : `${at.rank}.${at.slot}${at.group === 0 ? '' : `.${at.group}`}`, '');
  add('compare', settings.compare.join(','), defaults.compare.join(','));
  add('theme', settings.theme, defaults.theme);
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
  const list = (name: string, usual: readonly number[]): readonly number[] =>
    parseAmounts(fields.get(name) ?? '') ?? usual;
  const word = (name: string, usual: string): string => {
    const value = fields.get(name) ?? '';
    return /^[\w+-]{1,40}$/.test(value) ? value : usual;
  };
  return {
    view: views.find((view) => view === fields.get('view')) ?? defaults.view,
    schedule: word('schedule', defaults.schedule),
    ranks: whole('ranks', defaults.ranks, most.ranks),
    stagesPerRank: whole('stages', defaults.stagesPerRank, most.stagesPerRank),
    microbatches: whole('microbatches', defaults.microbatches, most.microbatches),
    costs: Object.fromEntries(costNames.map((name) => [name, list(name, defaults.costs[name])])) as Record<
      keyof CostSettings,
      readonly number[]
    >,
    limit: list('limit', defaults.limit),
    lowered: fields.get('lowered') === '1',
    path: fields.get('path') === '1',
    at: parseCell(fields.get('at') ?? ''),
    compare: (fields.get('compare') ?? '')
      .split(',')
      .filter((name) => /^[\w+-]{1,40}$/.test(name))
      .slice(0, most.compare),
    theme: themes.find((theme) => theme === fields.get('theme')) ?? defaults.theme,
    sort: word('sort', defaults.sort),
  };
}

/** A place such as `3.12`, rank 3 and slot 12, or `3.12.1` in the second schedule that is shown. */
function parseCell(text: string): SettingsCell | null {
  const [, rank, slot, group = '0'] = /^(\d{1,4})\.(\d{1,7})(?:\.(\d{1,2}))?$/.exec(text) ?? [];
  return rank === undefined ? null : { rank: Number(rank), slot: Number(slot), group: Number(group) };
}

/**
 * Amounts as people write them: numbers of at least 0 with commas or blanks between them; null where it is something else.
 * @example parseAmounts('1, 1.5 2') // [1, 1.5, 2]
 */
export function parseAmounts(text: string): readonly number[] | null {
  const trimmed = text.trim();
  const values = trimmed.split(/\s*,\s*|\s+/).map((item) => (item === '' ? Number.NaN : Number(item)));
  return values.length <= most.list && values.every((value) => value >= 0 && value <= 1e12) ? values : null;
}
