/** @file The shell: tabs, theme, help; what is on screen follows the address, and the address follows it. */
import { type Schedule, ScheduleError } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { type Desk, deskFor, type Editor, keepJudged, putOnDesk, readSchedule } from '../model/edit.ts';
import {
  type Found,
  findIn,
  type GivenFile,
  largeSchedule,
  type OpenedFiles,
  openFiles,
  saysSchedule,
  withoutCaller,
} from '../model/open-files.ts';
import { type OpenedPlan, planAmong, planSettings } from '../model/plan.ts';
import { defaults, formatSettings, parseSettings, type Settings, views } from '../model/settings.ts';
import { unpackJudged } from '../model/transfer.ts';
import { Button } from './controls.tsx';
import { Edit } from './edit.tsx';
import { Explore } from './explore.tsx';
import { openInWorker } from './explore-worker.ts';
import { Files } from './files.tsx';
import { Live } from './live.tsx';
import { readTexts } from './read-texts.ts';
import { preferredTheme, type ThemeName } from './theme.ts';
import { useDroppedFiles } from './use-dropped-files.ts';

/** What the page is opened with. */
export interface StudioData {
  /** Files that the command line named. */
  readonly files: readonly GivenFile[];
  /** Where to hear of a running job; null without one. */
  readonly events: string | null;
  /** What a job had told when the page was written; null without one. */
  readonly lines: readonly string[] | null;
}

const names: Readonly<Record<Settings['view'], string>> = {
  explore: 'Explore',
  edit: 'Edit',
  live: 'Live',
  files: 'Files',
};

/** How long settings stay as they are before the address has them: at most 200 times in 30 seconds, as Chromium allows. */
const addressMs = 160;

/** The page. */
export function App({ data }: { readonly data: StudioData }): JSX.Element {
  const [settings, setSettings] = useState(() => startOf(data));
  const [preferred] = useState<ThemeName>(preferredTheme);
  const theme: ThemeName = settings.theme === 'system' ? preferred : settings.theme;
  const desk = useRef<Desk | null>(null);
  const [opened, setOpened] = useState(() => openGiven(data.files));
  const [plan, setPlan] = useState<OpenedPlan | null>(() => planAmong(data.files));
  const [help, setHelp] = useState(false);
  const [height, setHeight] = useState(() => heightOf());
  useEffect(() => {
    document.documentElement.dataset['theme'] = theme;
  }, [theme]);
  useEffect(() => {
    const text = formatSettings(settings);
    if (text.length >= 20_000) return undefined;
    // Browsers ignore addresses that are written too often, as while a slider is dragged.
    const timer = setTimeout(() => history.replaceState(null, '', `#${text}`), addressMs);
    return () => clearTimeout(timer);
  }, [settings]);
  useEffect(() => {
    const hash = (): void => setSettings(parseSettings(location.hash));
    const size = (): void => setHeight(heightOf());
    const key = (event: KeyboardEvent): void => {
      if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
      if (event.key === '?') setHelp((on) => !on);
      if (event.key === 'Escape') setHelp(false);
    };
    addEventListener('hashchange', hash);
    addEventListener('resize', size);
    addEventListener('keydown', key);
    return () => {
      removeEventListener('hashchange', hash);
      removeEventListener('resize', size);
      removeEventListener('keydown', key);
    };
  }, []);
  const edit = (schedule: Schedule, view: Settings['view'] = 'edit'): void => {
    desk.current = putOnDesk(desk.current, schedule);
    setSettings((before) => ({ ...before, view }));
  };
  const show = (found: Found): void => {
    if ('plan' in found) {
      setPlan(found.plan);
      setSettings((before) => planSettings(found.plan, before));
    } else if ('schedule' in found) edit(found.schedule);
    else {
      // What cannot be read leaves what was opened before.
      const { run, problem } = found.opened;
      setOpened((before) => (run === null ? { ...before, problem } : found.opened));
      setSettings((before) => ({ ...before, view: 'files' }));
    }
  };
  const fail = (problem: string): void => show({ opened: { run: null, at: 0, problem } });
  const [opening, setOpening] = useState<string | null>(null);
  const asked = useRef(0);
  const costs = useRef(settings.costs);
  costs.current = settings.costs;
  const openTexts = (texts: readonly GivenFile[], view?: Settings['view']): void => {
    const number = ++asked.current;
    const large = largeSchedule(texts);
    setOpening(large?.name ?? null);
    if (large === null) {
      show(findIn(texts));
      return;
    }
    const request = { text: large.text, costs: costs.current };
    void openInWorker(request).then((answer) => {
      if (number !== asked.current) return; // another file was opened since
      setOpening(null);
      if ('error' in answer) {
        fail(`${large.name}: ${withoutCaller(answer.error)}`);
        return;
      }
      const judged = unpackJudged(answer.judged);
      keepJudged(judged, request.costs);
      edit(judged.schedule, view);
    });
  };
  const openChosen = useCallback((files: readonly File[]): void => {
    if (files.length === 0) return;
    void readTexts(files).then((texts) => (typeof texts === 'string' ? fail(texts) : openTexts(texts)));
  }, []);
  useEffect(() => {
    if (largeSchedule(data.files) !== null) openTexts(data.files, location.hash.length > 1 ? settings.view : undefined);
  }, []);
  const isDragged = useDroppedFiles(openChosen);
  const editor = (): Editor => (desk.current = deskFor(desk.current ?? deskOf(data.files), settings)).editor;
  return (
    <>
      <header>
        <h1>Pipewright studio</h1>
        <nav aria-label="Views">
          {views.map((view) => (
            <button
              type="button"
              key={view}
              aria-current={settings.view === view ? 'page' : undefined}
              onClick={() => setSettings({ ...settings, view })}
            >
              {names[view]}
            </button>
          ))}
        </nav>
        <span class="spring" />
        <Button
          onClick={() => setSettings({ ...settings, theme: theme === 'dark' ? 'light' : 'dark' })}
          title="Light or dark"
        >
          {theme === 'dark' ? 'light' : 'dark'}
        </Button>
        <Button pressed={help} onClick={() => setHelp(!help)} title="Keys (?)">
          ?
        </Button>
      </header>
      {help ? <Help /> : null}
      {isDragged ? (
        <div class="dropping" role="status">
          Drop to open
        </div>
      ) : null}
      {opening === null ? null : (
        <p class="opening" role="status">
          {opening} is being opened.
        </p>
      )}
      <main>
        {settings.view === 'explore' ? (
          <Explore
            settings={settings}
            plan={plan}
            theme={theme}
            height={height}
            onChange={setSettings}
            onEdit={({ schedule }) => schedule !== null && edit(schedule)}
          />
        ) : null}
        {settings.view === 'edit' ? <Edit settings={settings} theme={theme} height={height} editor={editor()} /> : null}
        {settings.view === 'live' ? (
          <Live events={data.events} lines={data.lines} plan={plan} theme={theme} height={height} />
        ) : null}
        {settings.view === 'files' ? (
          <Files
            theme={theme}
            height={height}
            opened={opened}
            onOpened={setOpened}
            onFiles={openChosen}
            onCosts={(costs, { schedule }) =>
              setSettings({
                ...settings,
                view: 'explore',
                ranks: schedule.ranks,
                stagesPerRank: Math.max(1, Math.round(schedule.stagesPerRank)),
                microbatches: schedule.microbatches,
                costs: { ...settings.costs, B: [], ...costs },
              })
            }
          />
        ) : null}
      </main>
    </>
  );
}

function Help(): JSX.Element {
  const keys: readonly (readonly [string, string])[] = [
    ['wheel, + and -, W and S', 'zoom'],
    ['drag, A and D, Shift with the wheel', 'pan'],
    ['0', 'the whole step'],
    ['left and right arrow', 'the action before and after in the row'],
    ['up and down arrow', 'what it waits for, what waits for it; in Edit, Live and Files the rank above and below'],
    ['Ctrl-Z, Ctrl-Shift-Z or Ctrl-Y', 'undo and redo in Edit'],
    ['Delete, Alt with an arrow', 'delete or move the selected action in Edit'],
    ['Escape', 'select nothing'],
    ['?', 'this list'],
  ];
  return (
    <dl class="help" aria-label="Keys">
      {keys.map(([key, what]) => (
        <div key={key}>
          <dt>{key}</dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

function heightOf(): number {
  return Math.max(180, Math.min(900, innerHeight - 420));
}

/** The first view: what the address says, else what was opened. */
function startOf(data: StudioData): Settings {
  if (location.hash.length > 1) return parseSettings(location.hash);
  const plan = planAmong(data.files);
  const first = plan === null ? defaults : planSettings(plan);
  if (data.events !== null || data.lines !== null) return { ...first, view: 'live' };
  if (plan !== null || data.files.length === 0) return first;
  return { ...defaults, view: scheduleIn(data.files) === null ? 'files' : 'edit' };
}

/** A file that the command line named is on the desk from the beginning. */
function deskOf(files: readonly GivenFile[]): Desk | null {
  const schedule = scheduleIn(files);
  return schedule === null ? null : putOnDesk(null, schedule);
}

/** Recordings and traces that the command line named; plans and schedules are shown in other views. */
function openGiven(files: readonly GivenFile[]): OpenedFiles {
  if (largeSchedule(files) !== null) return openFiles([]); // opened beside the page
  return scheduleIn(files) === null && planAmong(files) === null ? openFiles(files) : openFiles([]);
}

function scheduleIn(files: readonly GivenFile[]): Schedule | null {
  const [file] = files;
  if (files.length !== 1 || file === undefined || largeSchedule(files) !== null) return null;
  if (/^\s*\{/.test(file.text) && !saysSchedule(file.text)) return null;
  try {
    return readSchedule(file.text);
  } catch (error) {
    if (error instanceof ScheduleError) return null;
    throw error;
  }
}
