/** @file The timeline with its memory panel: pointer, wheel and keyboard. */
import type { MemoryCurve } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import type { LaneGroup } from '../timeline/layout.ts';
import { MemoryCanvas } from '../timeline/memory-canvas.ts';
import { type GroupCell, type Overlay, TimelineCanvas } from '../timeline/timeline-canvas.ts';
import { type ThemeName, themes } from './theme.ts';

/** What the timeline shows and tells. */
export interface TimelineProps {
  readonly groups: readonly LaneGroup[];
  readonly overlay: Overlay;
  readonly theme: ThemeName;
  /** Curves of the first group; null: no panel. */
  readonly memory: readonly MemoryCurve[] | null;
  /** Limits of the ranks, one for all or one for each; 0: none. */
  readonly limit: readonly number[];
  /** An amount of memory as text. */
  readonly memoryText: (amount: number) => string;
  /** Height to fill, in pixels. */
  readonly height: number;
  readonly label: string;
  readonly onHover: (cell: GroupCell | null) => void;
  readonly onSelect: (cell: GroupCell | null) => void;
  /** A key that the timeline does not use itself; true: it was used. */
  readonly onKey?: (event: KeyboardEvent) => boolean;
  /** Dragging a cell: false where cells cannot be moved, so that dragging pans. */
  readonly onDrag?: (cell: GroupCell, time: number, done: boolean) => void;
  /** Gives the canvas to whoever measures it. */
  readonly onReady?: (canvas: TimelineCanvas) => void;
}

const memoryHeight = 110;

/** A timeline. */
export function Timeline(props: TimelineProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const memoryElement = useRef<HTMLCanvasElement>(null);
  const timeline = useRef<TimelineCanvas | null>(null);
  const memory = useRef<MemoryCanvas | null>(null);
  const latest = useRef(props);
  latest.current = props;

  const drawMemory = (): void => {
    const { memory: curves, limit, memoryText, overlay, theme } = latest.current;
    if (curves === null || memory.current === null || timeline.current === null) return;
    const front = overlay.hovered?.rank ?? overlay.selected?.rank ?? -1;
    memory.current.show(curves, { limit, front, textOf: memoryText });
    memory.current.draw(timeline.current.view, { width: timeline.current.width, height: memoryHeight }, themes[theme]);
  };

  useEffect(() => {
    const made = new TimelineCanvas(canvas.current!, themes[latest.current.theme]);
    made.below = drawMemory;
    timeline.current = made;
    latest.current.onReady?.(made);
    const remove = listen(made, canvas.current!, latest);
    const observer = new ResizeObserver(() => {
      if (box.current !== null) made.resize(box.current.clientWidth, latest.current.height); // else the view was left
    });
    observer.observe(box.current!);
    return () => {
      observer.disconnect();
      remove();
    };
  }, []);

  useEffect(() => {
    timeline.current?.show(props.groups, true);
  }, [props.groups]);

  useEffect(() => {
    if (box.current !== null) timeline.current?.resize(box.current.clientWidth, props.height);
  }, [props.height]);

  useEffect(() => {
    timeline.current?.setTheme(themes[props.theme]);
  }, [props.theme]);

  useEffect(() => {
    if (timeline.current !== null) timeline.current.overlay = props.overlay;
    timeline.current?.redraw();
  }, [props.overlay]);

  const hasMemory = props.memory !== null;
  useEffect(() => {
    memory.current = hasMemory && memoryElement.current !== null ? new MemoryCanvas(memoryElement.current) : null;
    timeline.current?.redraw();
  }, [hasMemory]);

  useEffect(() => timeline.current?.redraw(), [props.memory, props.limit]);

  return (
    <div class="timeline" ref={box}>
      <canvas
        ref={canvas}
        class="lanes"
        tabIndex={0}
        role="application"
        aria-label={props.label}
        aria-description="Wheel zooms, dragging pans, arrow keys move between actions, + and - zoom, 0 shows the whole step"
      />
      {hasMemory ? (
        <canvas ref={memoryElement} class="memory" role="img" aria-label="Memory of every rank over time" />
      ) : null}
    </div>
  );
}

/** Connects pointer, wheel and keys; the result takes them off again. */
function listen(
  timeline: TimelineCanvas,
  canvas: HTMLCanvasElement,
  latest: { readonly current: TimelineProps },
): () => void {
  let hovered: GroupCell | null = null;
  const hover = (cell: GroupCell | null): void => {
    if (cell?.group === hovered?.group && cell?.rank === hovered?.rank && cell?.slot === hovered?.slot) return;
    hovered = cell;
    canvas.title = cell === null ? '' : timeline.textOf(cell);
    latest.current.onHover(cell);
  };
  let drag: { x: number; cell: GroupCell | null; far: boolean } | null = null;
  const at = (event: MouseEvent): { x: number; y: number } => {
    const bounds = canvas.getBoundingClientRect();
    return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
  };
  const wheel = (event: WheelEvent): void => {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.panBy(event.deltaX === 0 ? event.deltaY : event.deltaX);
    } else if (
      event.ctrlKey ||
      event.altKey ||
      canvas.clientHeight <= (canvas.parentElement?.clientHeight ?? 0) + 200
    ) {
      timeline.zoomBy(Math.exp(-event.deltaY * 0.002), at(event).x);
    } else return; // a long page scrolls
    event.preventDefault();
  };
  const down = (event: PointerEvent): void => {
    if (event.button !== 0) return;
    const { x, y } = at(event);
    drag = { x, cell: timeline.cellAt(x, y), far: false };
    canvas.setPointerCapture(event.pointerId);
  };
  const move = (event: PointerEvent): void => {
    const { x, y } = at(event);
    if (drag === null) {
      hover(timeline.cellAt(x, y));
      return;
    }
    if (!drag.far && Math.abs(x - drag.x) < 4) return;
    drag.far = true;
    const { onDrag } = latest.current;
    if (onDrag !== undefined && drag.cell !== null) onDrag(drag.cell, timeline.timeAt(x), false);
    else {
      timeline.panBy(drag.x - x);
      drag.x = x;
    }
  };
  const up = (event: PointerEvent): void => {
    if (drag === null) return;
    const { x, y } = at(event);
    const { onDrag, onSelect } = latest.current;
    if (!drag.far) onSelect(timeline.cellAt(x, y));
    else if (onDrag !== undefined && drag.cell !== null) onDrag(drag.cell, timeline.timeAt(x), true);
    drag = null;
  };
  const leave = (): void => hover(null);
  const key = (event: KeyboardEvent): void => {
    const middle = canvas.clientWidth / 2;
    if (event.key === '+' || event.key === '=' || event.key === 'w') timeline.zoomBy(1.4, middle);
    else if (event.key === '-' || event.key === 's') timeline.zoomBy(1 / 1.4, middle);
    else if (event.key === '0') timeline.fit();
    else if (event.key === 'a') timeline.panBy(-80);
    else if (event.key === 'd') timeline.panBy(80);
    else if (latest.current.onKey?.(event) !== true) return;
    event.preventDefault();
  };
  canvas.addEventListener('wheel', wheel, { passive: false });
  canvas.addEventListener('pointerdown', down);
  canvas.addEventListener('pointermove', move);
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointerleave', leave);
  canvas.addEventListener('keydown', key);
  return () => {
    canvas.removeEventListener('wheel', wheel);
    canvas.removeEventListener('pointerdown', down);
    canvas.removeEventListener('pointermove', move);
    canvas.removeEventListener('pointerup', up);
    canvas.removeEventListener('pointerleave', leave);
    canvas.removeEventListener('keydown', key);
  };
}
