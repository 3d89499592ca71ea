/** @file Light and dark: the colours of the canvas, and which of the two is on. */
import type { TimelineTheme } from '../timeline/timeline-canvas.ts';

/** The name of a theme. */
export type ThemeName = 'light' | 'dark';

/** Colours by theme; the page's own are in style.css. */
export const themes: Readonly<Record<ThemeName, TimelineTheme>> = {
  light: {
    ground: '#ffffff',
    idle: '#eef1f5',
    hatch: '#dde2ea',
    text: '#1c2733',
    faint: '#6b7785',
    mark: '#c0186b',
    warn: '#c62828',
  },
  dark: {
    ground: '#10151b',
    idle: '#1b232d',
    hatch: '#26303c',
    text: '#e8edf3',
    faint: '#93a1b0',
    mark: '#ff7ab8',
    warn: '#ff6b5e',
  },
};

/** What the reader's system prefers. */
export function preferredTheme(): ThemeName {
  return globalThis.matchMedia?.('(prefers-color-scheme: dark)').matches === true ? 'dark' : 'light';
}
