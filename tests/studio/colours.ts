/** @file What a timeline shows, by its colours. */
import type { Page } from 'playwright-core';

/** Pixels of each colour in the timeline: forwards, backwards, what is not finished. */
export function coloursOf(page: Page): Promise<{ forward: number; backward: number; warn: number }> {
  return page.evaluate(() => {
    const canvas = document.querySelector<HTMLCanvasElement>('canvas.lanes')!;
    const { data } = canvas.getContext('2d')!.getImageData(90, 0, canvas.width - 90, canvas.height);
    const found = { forward: 0, backward: 0, warn: 0 };
    for (let i = 0; i < data.length; i += 4) {
      const color = (data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!;
      if (color === 0x3f7fd6) found.forward++;
      else if (color === 0xda701f) found.backward++;
      else if (color === 0xc62828) found.warn++;
    }
    return found;
  });
}
