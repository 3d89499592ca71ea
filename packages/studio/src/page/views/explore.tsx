/** @file Explore: choose a schedule, a shape and costs, and see at once what comes of it. */
import { percent, plural, renderSvg, scheduleNames, toChromeTrace } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { mostEdited } from '../model/edit.ts';
import {
  bestOf,
  type Explored,
  isLimited,
  namesToCompare,
  recommend,
  sayContinued,
  sayPeak,
} from '../model/explore.ts';
import type { ExploreJob } from '../model/explore-request.ts';
import { listedName } from '../model/extent.ts';
import { sayIdle } from '../model/idle.ts';
import type { Lanes } from '../model/lanes.ts';
import { type CellPlace, Links } from '../model/links.ts';
import { type OpenedPlan, planName, sayOrigin } from '../model/plan.ts';
import type { CostSettings, Settings } from '../model/settings.ts';
import { showMemory, showTime } from '../model/units.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { CompareTable } from './compare-table.tsx';
import { AmountsField, Button, download, NumberField, SelectField } from './controls.tsx';
import { Details } from './details.tsx';
import { IdleTable } from './idle-table.tsx';
import { Legend } from './legend.tsx';
import { savePng } from './save-png.ts';
import { stepKey } from './step-key.ts';
import type { ThemeName } from './theme.ts';
import { Timeline, type TimelineProps } from './timeline.tsx';
import { useExplored } from './use-explored.ts';

/** Cells up to which it is worked out what each action waits for. */
const mostLinked = 60_000;

/** The view. */
export function Explore(props: {
  readonly settings: Settings;
  /** The plan that was opened; null without one. */
  readonly plan: OpenedPlan | null;
  readonly theme: ThemeName;
  readonly height: number;
  readonly onChange: (settings: Settings) => void;
  readonly onEdit: (explored: Explored) => void;
}): JSX.Element {
  const { settings, onChange } = props;
  const { plan } = props;
  const { at, path: showPath } = settings;
  const select = (cell: GroupCell | null): void => onChange({ ...settings, at: cell });
  const planKey = useMemo(() => (plan === null ? '' : JSON.stringify(plan.plan)), [plan]);
  const mainName = listedName(settings.schedule);
  const drawn = [mainName, ...settings.compare.filter((name) => name !== mainName)];
  const pictures = useExplored(
    drawn.map((name): ExploreJob => ({ name, settings, draw: true, plan })),
    `${drawn.join()} ${keyOf(settings)} ${settings.lowered} ${planKey}`,
  );
  const table = useExplored(
    namesToCompare(settings, plan).map(
      (name): ExploreJob => ({ name, settings: { ...settings, lowered: false }, draw: false, plan }),
    ),
    `${keyOf(settings)} ${planKey}`,
  );
  const [main = null] = pictures.all;
  const shown = pictures.all.filter((one): one is Explored & { lanes: Lanes } => one.lanes !== null);
  // A schedule that has no action there has nothing selected; another one may.
  const selected = at !== null && (shown[at.group]?.schedule?.rows[at.rank]?.[at.slot] ?? 0) !== 0 ? at : null;
  const groups = useMemo(
    () => shown.map((one) => ({ key: one.name, title: titleOf(one), lanes: one.lanes })),
    [pictures.all],
  );
  const links = useMemo(
    () =>
      shown.map(({ simulation }) =>
        simulation === null || simulation.schedule.size > mostLinked ? null : new Links(simulation),
      ),
    [groups],
  );
  const critical = useMemo(
    () =>
      !showPath
        ? []
        : shown.flatMap(({ simulation }, group) =>
            (simulation?.criticalPath ?? []).map(({ rank, slot }) => ({ group, rank, slot })),
          ),
    [groups, showPath],
  );
  const costs = (changed: Partial<CostSettings>): void =>
    onChange({ ...settings, costs: { ...settings.costs, ...changed } });
  const best = table.isOld ? null : bestOf(table.all);
  const time = { most: 4, step: 0.05 };
  const byStage = [settings.ranks * settings.stagesPerRank, 'stage'] as const;
  const byRank = [settings.ranks, 'rank'] as const;
  const chosen = selected === null ? null : (shown[selected.group] ?? null);
  const chosenLinks = selected === null ? null : (links[selected.group] ?? null);
  const go = (cell: CellPlace): void => select({ group: selected?.group ?? 0, ...cell });
  return (
    <div class="view">
      <div class="bar" role="group" aria-label="Schedule and shape">
        <SelectField
          label="schedule"
          value={mainName}
          names={plan === null ? scheduleNames : [planName, ...scheduleNames]}
          onChange={(schedule) => onChange({ ...settings, schedule })}
        />
        <NumberField
          label="ranks"
          value={settings.ranks}
          most={1024}
          onChange={(ranks) => onChange({ ...settings, ranks })}
        />
        <NumberField
          label="stages per rank"
          value={settings.stagesPerRank}
          most={64}
          onChange={(stagesPerRank) => onChange({ ...settings, stagesPerRank })}
        />
        <NumberField
          label="microbatches"
          value={settings.microbatches}
          most={4096}
          onChange={(microbatches) => onChange({ ...settings, microbatches })}
        />
        <Button
          pressed={settings.lowered}
          title="Show sends and receives as actions"
          onClick={() => onChange({ ...settings, lowered: !settings.lowered })}
        >
          messages
        </Button>
        <Button
          pressed={showPath}
          title="Highlight the actions that determine the step time"
          onClick={() => onChange({ ...settings, path: !showPath })}
        >
          critical path
        </Button>
        <Button
          disabled={!main?.schedule || main.schedule.size > mostEdited}
          onClick={() => main !== null && props.onEdit(main)}
          title={
            (main?.schedule?.size ?? 0) > mostEdited
              ? 'Too many actions to change by hand'
              : 'Change this schedule by hand'
          }
        >
          edit
        </Button>
      </div>
      <div class="bar" role="group" aria-label="Times of one stage and one microbatch">
        <span class="what">time per stage, ms</span>
        <AmountsField
          label="forward"
          title="Time of a forward, ms"
          unit="ms"
          count={byStage}
          values={settings.costs.F}
          slider={time}
          onChange={(F) => costs({ F })}
        />
        <AmountsField
          label="backward: inputs"
          title="Time of the input half of a backward, ms"
          unit="ms"
          count={byStage}
          values={settings.costs.I}
          slider={time}
          onChange={(I) => costs({ I, B: [] })}
        />
        <AmountsField
          label="weights"
          title="Time of the weight half of a backward, ms"
          unit="ms"
          count={byStage}
          values={settings.costs.W}
          slider={time}
          onChange={(W) => costs({ W, B: [] })}
        />
        <AmountsField
          label="message"
          title="Time of a message between ranks, ms"
          unit="ms"
          count={byStage}
          values={settings.costs.comm}
          slider={{ most: 2, step: 0.02 }}
          onChange={(comm) => costs({ comm })}
        />
      </div>
      <div class="bar" role="group" aria-label="Memory">
        <span class="what">memory, GB</span>
        <AmountsField
          label="memory per rank"
          title="Memory that a rank may use, GB"
          unit="GB"
          count={byRank}
          values={settings.limit}
          empty={{ values: [0], text: 'none' }}
          onChange={(limit) => onChange({ ...settings, limit })}
        />
        <AmountsField
          label="activations per microbatch and stage"
          title="Memory of one microbatch on one stage, GB"
          unit="GB"
          count={byStage}
          values={settings.costs.activation}
          slider={{ most: 8, step: 0.05 }}
          onChange={(activation) => costs({ activation })}
        />
        <AmountsField
          label="parameters and optimizer state per stage"
          title="Memory of the parameters, gradients and optimizer states of a stage, GB"
          unit="GB"
          count={byStage}
          values={settings.costs.parameters}
          slider={{ most: 40, step: 0.1 }}
          onChange={(parameters) => costs({ parameters })}
        />
      </div>
      <div class="diagnosis" aria-live="polite" aria-busy={pictures.isOld || table.isOld}>
        <p class="answer">
          <strong>
            {table.isOld
              ? recommend([], settings, table.all.length)
              : recommend(table.all, settings, table.missing.length)}
          </strong>{' '}
          {best === null || best.name === mainName ? null : (
            <Button onClick={() => onChange({ ...settings, schedule: best.name })}>show {best.name}</Button>
          )}
        </p>
        {pictures.isOld || main === null ? (
          <p>
            <strong>{mainName}</strong> is being simulated.
          </p>
        ) : main.problem !== null ? (
          <p class="problem" role="alert">
            <strong>{main.name}</strong>: {main.problem}
          </p>
        ) : (
          <MainResult main={main} settings={settings} plan={plan} />
        )}
      </div>
      <div class="stage">
        {shown.length === 0 ? null : (
          <ExploreTimeline
            groups={groups}
            links={links}
            critical={critical}
            selected={selected}
            theme={props.theme}
            memory={shown[0]?.lanes.picture.memory ?? null}
            limit={settings.limit}
            memoryText={showMemory}
            height={props.height}
            label={`Timeline of ${shown.map(({ name }) => name).join(', ')}`}
            onSelect={select}
            onKey={(event) => {
              const next = stepKey(event, selected, shown[selected?.group ?? 0]?.schedule ?? null, chosenLinks);
              if (next === undefined) return false;
              select(next);
              return true;
            }}
            onReady={(canvas) => Object.assign(globalThis, { pipewrightTimeline: canvas })}
          />
        )}
        {chosen?.simulation && chosenLinks && selected ? (
          <Details simulation={chosen.simulation} links={chosenLinks} cell={selected} onGo={go} />
        ) : !main?.simulation ? null : (
          <IdleTable simulation={main.simulation} />
        )}
      </div>
      <div class="bar" role="group" aria-label="Save the picture">
        {shown.length === 0 ? null : <Legend groups={groups} />}
        <span class="spring" />
        <SaveButtons main={main} />
      </div>
      <CompareTable
        rows={table.all}
        missing={table.missing}
        isOld={table.isOld}
        main={mainName}
        ranks={settings.ranks}
        best={best?.name ?? null}
        limited={isLimited(settings)}
        compared={settings.compare}
        sort={settings.sort}
        onSort={(sort) => onChange({ ...settings, sort })}
        onMain={(schedule) => onChange({ ...settings, schedule })}
        onCompare={(name, on) =>
          onChange({
            ...settings,
            compare: on ? [...settings.compare, name] : settings.compare.filter((other) => other !== name),
          })
        }
      />
    </div>
  );
}

/** What comes of the chosen schedule, in words. */
function MainResult(props: {
  readonly main: Explored;
  readonly settings: Settings;
  readonly plan: OpenedPlan | null;
}): JSX.Element {
  const { main, settings, plan } = props;
  const perRank = main.stages / settings.ranks;
  const origin = useMemo(() => (plan === null ? '' : ` ${sayOrigin(plan, settings)}`), [plan, settings]);
  return (
    <p>
      <strong>{main.name}</strong>: step time {main.simulated === null ? '' : 'about '}
      {showTime(main.makespan)}, {percent(main.bubble)} idle, peak {sayPeak(main, settings)}, {main.messages} messages
      {main.stages === settings.ranks * settings.stagesPerRank
        ? ''
        : `, ${plural(perRank, 'stage')} per rank with the same work per rank`}
      {main.fits ? '' : `; does not fit, ${showMemory(main.missing)} short on rank ${main.missingRank}`}.{' '}
      {main.simulated === null
        ? ''
        : main.simulated.ranks === settings.ranks
          ? `${main.simulated.microbatches} of ${settings.microbatches} microbatches were simulated and are drawn; time and memory of the others continue at the same rate. Of the drawn ones: `
          : `A step of ${sayContinued(main.simulated, settings.ranks)} is drawn; time and memory of ${settings.ranks} ranks and ${settings.microbatches} microbatches continue as from half of it to it. Of the drawn one: `}
      {main.simulation === null ? '' : sayIdle(main.simulation)}
      {origin}
    </p>
  );
}

/** Buttons that save the chosen schedule's step. */
function SaveButtons({ main }: { readonly main: Explored | null }): JSX.Element {
  const simulation = main?.simulation ?? null;
  const name = main?.name ?? '';
  return (
    <>
      <Button
        disabled={simulation === null}
        title="Save the step as a drawing"
        onClick={() => simulation && download(`${name}.svg`, 'image/svg+xml', renderSvg(simulation))}
      >
        SVG
      </Button>
      <Button
        disabled={simulation === null}
        title="Save what the timeline shows as a picture"
        onClick={() => savePng(name)}
      >
        PNG
      </Button>
      <Button
        disabled={simulation === null}
        title="A trace for ui.perfetto.dev"
        onClick={() =>
          simulation && download(`${name}.json`, 'application/json', JSON.stringify(toChromeTrace(simulation)))
        }
      >
        Perfetto
      </Button>
    </>
  );
}

/** The settings that change what is simulated, whatever the schedule, as text. */
function keyOf({ ranks, stagesPerRank, microbatches, costs, limit }: Settings): string {
  return JSON.stringify([ranks, stagesPerRank, microbatches, costs, limit]);
}

/** The timeline; the action under the pointer is known to it alone, so that the rest of the page stays as it is. */
function ExploreTimeline(
  props: Omit<TimelineProps, 'overlay' | 'onHover'> & {
    readonly links: readonly (Links | null)[];
    readonly critical: readonly GroupCell[];
    readonly selected: GroupCell | null;
  },
): JSX.Element {
  const [hovered, hover] = useState<GroupCell | null>(null);
  const { links, critical, selected, ...rest } = props;
  const overlay = useMemo((): Overlay => {
    const around = selected ?? hovered;
    const own = around === null ? null : (links[around.group] ?? null);
    const arrows =
      around === null || own === null
        ? []
        : [...own.before(around), ...own.after(around)]
            .filter(({ message }) => message)
            .map(({ from, to }) => ({ group: around.group, from, to }));
    return { selected, hovered, arrows, marks: [], critical, drop: null };
  }, [selected, hovered, critical, links]);
  return <Timeline {...rest} overlay={overlay} onHover={hover} />;
}

function titleOf({ name, makespan, bubble, peak }: Explored): string {
  return `${name}: ${showTime(makespan)}, ${percent(bubble)} idle, peak ${showMemory(peak)}`;
}
