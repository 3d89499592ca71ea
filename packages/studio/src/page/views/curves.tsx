/** @file Curves over the steps of a run: step time, loss, tokens per second, memory, waiting. */
import { quantity } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import UPlot from 'uplot';
import type { ThemeName } from './theme.ts';
import { themes } from './theme.ts';

/** One curve. */
export function Curve(props: {
  readonly title: string;
  readonly steps: readonly number[];
  readonly values: readonly (number | null)[];
  readonly theme: ThemeName;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  useEffect(() => {
    const element = box.current!;
    const { text, faint, mark } = themes[props.theme];
    const axis = {
      stroke: faint,
      grid: { stroke: faint, width: 0.2 },
      ticks: { stroke: faint, width: 0.5 },
      font: '10px system-ui',
    };
    plot.current = new UPlot(
      {
        width: Math.max(120, element.clientWidth),
        height: 110,
        title: props.title,
        legend: { show: false },
        cursor: { y: false },
        scales: { x: { time: false } },
        series: [{}, { stroke: mark, width: 1.5, points: { show: false }, spanGaps: true }],
        axes: [
          { ...axis, size: 28, space: 40 },
          { ...axis, size: 56, space: 16 },
        ],
      },
      [[], []],
      element,
    );
    element.querySelector<HTMLElement>('.u-title')?.style.setProperty('color', text);
    const observer = new ResizeObserver(() =>
      plot.current?.setSize({ width: Math.max(120, element.clientWidth), height: 110 }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [props.theme, props.title]);
  useEffect(() => {
    plot.current?.setData([[...props.steps], [...props.values]]);
  });
  const last = props.values.findLast((value) => value !== null);
  return (
    <div
      class="curve"
      ref={box}
      role="img"
      aria-label={`${props.title}, last value ${last == null ? 'unknown' : quantity(last)}`}
    />
  );
}
