/** @file A recorded step, its plan above it lane by lane. */
import { plural, quantity } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { RecordedView } from '../model/recorded.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { stepKey } from './step-key.ts';
import type { ThemeName } from './theme.ts';
import { Timeline } from './timeline.tsx';

/** The timeline of a recorded step. */
export function RunTimeline(props: {
  readonly view: RecordedView;
  /** What the thin lanes show. */
  readonly plan: string;
  /** Whether the step has not ended. */
  readonly isUnfinished?: boolean;
  readonly overlay: Overlay;
  readonly theme: ThemeName;
  readonly height: number;
  readonly label: string;
  readonly onSelect: (cell: GroupCell | null) => void;
}): JSX.Element {
  const [hovered, hover] = useState<GroupCell | null>(null);
  const { recorded, planned } = props.view;
  const groups = useMemo(
    () => [
      {
        key: 'run',
        title:
          planned === null
            ? ''
            : props.isUnfinished === true
              ? `the step that has not ended. thin: ${props.plan}, thick: recorded so far, red: not finished`
              : `thin: ${props.plan}, thick: recorded, red: longer or late`,
        lanes: recorded,
        planned,
      },
    ],
    [recorded, planned, props.plan, props.isUnfinished],
  );
  const overlay = useMemo(() => ({ ...props.overlay, hovered }), [props.overlay, hovered]);
  return (
    <Timeline
      groups={groups}
      overlay={overlay}
      theme={props.theme}
      memory={recorded.picture.memory}
      limit={[0]}
      memoryText={(amount) => (Number.isInteger(amount) ? plural(amount, 'activation') : quantity(amount))}
      height={props.height}
      label={props.label}
      onHover={hover}
      onSelect={props.onSelect}
      onKey={(event) => {
        const next = stepKey(event, props.overlay.selected, recorded.picture.schedule, null);
        if (next === undefined) return false;
        props.onSelect(next);
        return true;
      }}
    />
  );
}
