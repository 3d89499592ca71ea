/** @file Explore: choose a schedule, a shape and costs, and see at once what comes of it. */
import { percent, quantity, renderSvg, scheduleNames, toChromeTrace } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { type Explored, explore, exploreAll, recommend } from '../model/explore.ts';
import { sayIdle } from '../model/idle.ts';
import type { Lanes } from '../model/lanes.ts';
import { type CellPlace, Links } from '../model/links.ts';
import type { CostSettings, Settings } from '../model/settings.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { CompareTable } from './compare-table.tsx';
import { Button, download, NumberField, SelectField, SliderField } from './controls.tsx';
import { Details } from './details.tsx';
import { IdleTable } from './idle-table.tsx';
import { Legend } from './legend.tsx';
import { savePng } from './save-png.ts';
import { stepKey } from './step-key.ts';
import type { ThemeName } from './theme.ts';
import { Timeline } from './timeline.tsx';

/** Cells up to which all is computed anew while a slider moves. */
const lightCells = 60_000;

/** The view. */
export function Explore(props: {
  readonly settings: Settings;
  readonly theme: ThemeName;
  readonly height: number;
  readonly onChange: (settings: Settings) => void;
  readonly onEdit: (explored: Explored) => void;
}): JSX.Element {
  const { settings, onChange } = props;
  const [selected, select] = useState<GroupCell | null>(null);
  const [hovered, hover] = useState<GroupCell | null>(null);
  const [showPath, setShowPath] = useState(false);
  const key = JSON.stringify([
    settings.schedule,
    settings.ranks,
    settings.stagesPerRank,
    settings.microbatches,
    settings.costs,
    settings.limit,
    settings.lowered,
  ]);
  const main = useMemo(() => explore(settings.schedule, settings, true), [key]);
  const others = useMemo(
    () => settings.compare.filter((name) => name !== main.name).map((name) => explore(name, settings, true)),
    [key, settings.compare.join(), main.name],
  );
  const large = settings.ranks * settings.stagesPerRank * settings.microbatches * 2 > lightCells;
  const table = useMemo(
    () => (large ? [main, ...others] : exploreAll(settings)),
    [key, large, large ? settings.compare.join() : ''],
  );
  const shown = [main, ...others].filter((one): one is Explored & { lanes: Lanes } => one.lanes !== null);
  const groups = useMemo(
    () => shown.map((one) => ({ key: one.name, title: titleOf(one), lanes: one.lanes })),
    [main, others],
  );
  const links = useMemo(
    () =>
      shown.map(({ simulation }) =>
        simulation === null || simulation.schedule.size > lightCells ? null : new Links(simulation),
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
  const costs = (changed: Partial<CostSettings>): void =>
    onChange({ ...settings, costs: { ...settings.costs, ...changed } });
  const one = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
  const chosen = selected === null ? null : (shown[selected.group] ?? null);
  const chosenLinks = selected === null ? null : (links[selected.group] ?? null);
  const go = (cell: CellPlace): void => select({ group: selected?.group ?? 0, ...cell });
  return (
    <div class="view">
      <div class="bar" role="group" aria-label="Schedule and shape">
        <SelectField
          label="schedule"
          value={main.name}
          names={scheduleNames}
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
          title="Mark the chain of actions that decides the step"
          onClick={() => setShowPath(!showPath)}
        >
          critical path
        </Button>
        <Button
          disabled={main.schedule === null}
          onClick={() => props.onEdit(main)}
          title="Change this schedule by hand"
        >
          edit
        </Button>
        <span class="spring" />
        <Button
          disabled={main.simulation === null}
          onClick={() => main.simulation && download(`${main.name}.svg`, 'image/svg+xml', renderSvg(main.simulation))}
        >
          SVG
        </Button>
        <Button disabled={main.simulation === null} onClick={() => savePng(main.name)}>
          PNG
        </Button>
        <Button
          disabled={main.simulation === null}
          title="A trace for ui.perfetto.dev"
          onClick={() =>
            main.simulation &&
            download(`${main.name}.json`, 'application/json', JSON.stringify(toChromeTrace(main.simulation)))
          }
        >
          Perfetto
        </Button>
      </div>
      <div class="bar" role="group" aria-label="Costs of one stage">
        <SliderField
          label="F"
          title="Time of a forward"
          value={one(settings.costs.F)}
          most={4}
          step={0.05}
          onChange={(value) => costs({ F: [value] })}
        />
        <SliderField
          label="I"
          title="Time of the input half of a backward"
          value={one(settings.costs.I)}
          most={4}
          step={0.05}
          onChange={(value) => costs({ I: [value] })}
        />
        <SliderField
          label="W"
          title="Time of the weight half of a backward"
          value={one(settings.costs.W)}
          most={4}
          step={0.05}
          onChange={(value) => costs({ W: [value] })}
        />
        <SliderField
          label="message"
          title="Time of a message between ranks"
          value={settings.costs.comm}
          most={2}
          step={0.02}
          onChange={(comm) => costs({ comm })}
        />
        <SliderField
          label="activation"
          title="Memory of one microbatch on one stage"
          value={one(settings.costs.activation)}
          most={8}
          step={0.05}
          onChange={(value) => costs({ activation: [value] })}
        />
        <SliderField
          label="parameters"
          title="Memory of a stage's parameters, gradients and optimizer states"
          value={settings.costs.parameters}
          most={40}
          step={0.1}
          onChange={(parameters) => costs({ parameters })}
        />
        <SliderField
          label="limit"
          title="Memory that a rank may use, 0 for no limit"
          value={settings.limit}
          most={100}
          step={0.5}
          onChange={(limit) => onChange({ ...settings, limit })}
        />
      </div>
      {main.problem !== null || main.simulation === null ? (
        <p class="problem" role="alert">
          {main.problem}
        </p>
      ) : (
        <p class="diagnosis" aria-live="polite">
          <strong>{sayIdle(main.simulation)}</strong> Step time {quantity(main.makespan)}, {percent(main.bubble)} idle,
          peak {quantity(main.peak)} on rank {main.peakRank}
          {main.fits ? '' : ` (limit ${quantity(settings.limit)})`}, {main.messages} messages.
          {large ? '' : ` ${recommend(table, settings)}`}
        </p>
      )}
      <div class="stage">
        <Timeline
          groups={groups}
          overlay={overlay}
          theme={props.theme}
          memory={shown[0]?.lanes.picture.memory ?? null}
          limit={settings.limit}
          height={props.height}
          label={`Timeline of ${shown.map(({ name }) => name).join(', ')}`}
          onHover={hover}
          onSelect={select}
          onKey={(event) => {
            const next = stepKey(event, selected, shown[selected?.group ?? 0]?.schedule ?? null, chosenLinks);
            if (next === undefined) return false;
            select(next);
            return true;
          }}
          onReady={(canvas) => Object.assign(globalThis, { pipewrightTimeline: canvas })}
        />
        {chosen?.simulation && chosenLinks && selected ? (
          <Details simulation={chosen.simulation} links={chosenLinks} cell={selected} onGo={go} />
        ) : main.simulation === null ? null : (
          <IdleTable simulation={main.simulation} />
        )}
      </div>
      <Legend groups={groups} />
      <CompareTable
        rows={table}
        main={main.name}
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

function titleOf({ name, makespan, bubble, peak }: Explored): string {
  return `${name}: ${quantity(makespan)}, ${percent(bubble)} idle, peak ${quantity(peak)}`;
}
