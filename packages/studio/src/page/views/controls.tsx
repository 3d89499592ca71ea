/** @file Small controls with labels: numbers, sliders, choices, buttons that give a file. */
import type { ComponentChildren, JSX } from 'preact';

/** A whole number. */
export function NumberField(props: {
  readonly label: string;
  readonly value: number;
  readonly most: number;
  readonly onChange: (value: number) => void;
}): JSX.Element {
  return (
    <label class="field">
      {props.label}
      <input
        type="number"
        min={1}
        max={props.most}
        value={props.value}
        onInput={(event) => {
          const value = Number(event.currentTarget.value);
          if (Number.isInteger(value) && value >= 1 && value <= props.most) props.onChange(value);
        }}
      />
    </label>
  );
}

/** An amount with a slider and a box beside it. */
export function SliderField(props: {
  readonly label: string;
  readonly title: string;
  readonly value: number;
  readonly most: number;
  readonly step: number;
  readonly onChange: (value: number) => void;
}): JSX.Element {
  const change = (text: string): void => {
    const value = Number(text);
    if (text.trim() !== '' && value >= 0 && value <= 1e12) props.onChange(value);
  };
  return (
    <label class="field" title={props.title}>
      {props.label}
      <input
        type="range"
        min={0}
        max={Math.max(props.most, props.value)}
        step={props.step}
        value={props.value}
        aria-label={`${props.title}, slider`}
        onInput={(event) => change(event.currentTarget.value)}
      />
      <input
        type="number"
        class="amount"
        min={0}
        step="any"
        value={props.value}
        aria-label={props.title}
        onInput={(event) => change(event.currentTarget.value)}
      />
    </label>
  );
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
