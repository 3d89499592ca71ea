/** @file The timeline on screen as a PNG file. */
import { download } from './controls.tsx';

/** Saves what the timeline shows. */
export function savePng(name: string): void {
  const canvas = document.querySelector<HTMLCanvasElement>('canvas.lanes');
  canvas?.toBlob((blob) => {
    if (blob !== null) download(`${name}.png`, 'image/png', blob);
  }, 'image/png');
}
