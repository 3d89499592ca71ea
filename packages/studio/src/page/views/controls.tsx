/** @file Small controls with labels: numbers, sliders, choices, buttons that give a file. */
import type { ComponentChildren, JSX } from 'preact';
import { useId, useState } from 'preact/hooks';
import { amountsProblem, countProblem, readAmounts, type Unit, wholeProblem } from '../model/amounts.ts';

/** A whole number. */
export function NumberField(props: {
  readonly label: string;
  readonly value: number;
  readonly most: number;
  readonly onChange: (value: number) => void;
}): JSX.Element {
  const id = useId();
  const [draft, setDraft] = useState<string | null>(null);
  const problem = draft === null ? null : wholeProblem(draft, props.most);
  return (
    <>
      <label class="field">
        {props.label}
        <input
          type="number"
          min={1}
          max={props.most}
          value={draft ?? props.value}
          aria-invalid={problem !== null}
          aria-describedby={problem === null ? undefined : id}
          onInput={(event) => {
            const { value } = event.currentTarget;
            const isFine = wholeProblem(value, props.most) === null;
            setDraft(isFine ? null : value);
            if (isFine) props.onChange(Number(value));
          }}
        />
      </label>
      <Wrong id={id} text={problem} />
    </>
  );
}

/** What is wrong with the field before it. */
function Wrong({ id, text }: { readonly id: string; readonly text: string | null }): JSX.Element | null {
  if (text === null) return null;
  return (
    <span class="wrong" role="alert" id={id}>
      {text}
    </span>
  );
}

/** Amounts, one for all or one for each stage or rank, in a box; with a slider that makes all of them larger or smaller. */
export function AmountsField(props: {
  readonly label: string;
  readonly title: string;
  readonly unit: Unit;
  readonly values: readonly number[];
  /** How many values there are, if not one for all, and of what. */
  readonly count: readonly [number, 'stage' | 'rank'];
  /** End of the slider and its step; left out: no slider. */
  readonly slider?: { readonly most: number; readonly step: number };
  /** What an empty box means; left out: an empty box is no amount. */
  readonly empty?: { readonly values: readonly number[]; readonly text: string };
  readonly onChange: (values: readonly number[]) => void;
}): JSX.Element {
  const [draft, setDraft] = useState<string | null>(null);
  const { values, slider, empty, title } = props;
  const mean = values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
  const text = empty !== undefined && String(values) === String(empty.values) ? '' : values.map(shownAmount).join(', ');
  const slide = (to: number): void =>
    props.onChange(mean > 0 ? values.map((value) => Number(((value * to) / mean).toPrecision(6))) : [to]);
  const write = (written: string): void => {
    setDraft(written);
    const read = written.trim() === '' ? (empty?.values ?? null) : readAmounts(written, props.unit);
    if (read !== null) props.onChange(read);
  };
  const id = useId();
  const isEmpty = draft !== null && draft.trim() === '' && empty !== undefined;
  const wrong = draft === null || isEmpty ? null : amountsProblem(draft, props.unit);
  const problem = wrong ?? countProblem(values.length, ...props.count);
  return (
    <>
      <label class="field" title={`${title}; one number, or several with commas`}>
        {props.label}
        {slider === undefined ? null : (
          <input
            type="range"
            min={0}
            max={Math.max(slider.most, mean)}
            step={slider.step}
            value={mean}
            aria-label={`${title}, slider`}
            onInput={(event) => {
              setDraft(null);
              slide(Number(event.currentTarget.value));
            }}
          />
        )}
        <input
          type="text"
          class="amount"
          inputMode="decimal"
          size={Math.max(4, Math.min(18, (draft ?? text).length))}
          value={draft ?? text}
          placeholder={empty?.text}
          aria-label={title}
          aria-invalid={wrong !== null}
          aria-describedby={problem === null ? undefined : id}
          onInput={(event) => write(event.currentTarget.value)}
          onBlur={() => wrong === null && setDraft(null)}
        />
      </label>
      <Wrong id={id} text={problem} />
    </>
  );
}

/** An amount in a box: six digits; the value itself keeps all of them until the box is changed. */
function shownAmount(value: number): string {
  return String(Number(value.toPrecision(6)));
}

/** A choice among names. */
export function SelectField(props: {
  readonly label: string;
  readonly value: string;
  readonly names: readonly string[];
  readonly onChange: (value: string) => void;
}): JSX.Element {
  return (
    <label class="field">
      {props.label}
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.names.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A button. */
export function Button(props: {
  readonly onClick: () => void;
  readonly title?: string;
  readonly disabled?: boolean;
  readonly pressed?: boolean;
  readonly children: ComponentChildren;
}): JSX.Element {
  return (
    <button
      type="button"
      title={props.title}
      disabled={props.disabled === true}
      aria-pressed={props.pressed}
      onClick={props.onClick}
    >
      {props.children}
    </button>
  );
}

/** Gives a text or picture to the reader as a file. */
export function download(name: string, type: string, content: BlobPart): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
