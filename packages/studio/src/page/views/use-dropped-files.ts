/** @file Files that are dragged onto the page, wherever it is hit. */
import { useEffect, useState } from 'preact/hooks';

/** Takes files that are dropped on the page; true while some are dragged over it. */
export function useDroppedFiles(onFiles: (files: readonly File[]) => void): boolean {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes('Files') === true;
    const over = (event: DragEvent): void => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent): void => {
      if (event.relatedTarget === null) setOver(false); // it has left the page, not only an element of it
    };
    const drop = (event: DragEvent): void => {
      setOver(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      onFiles([...(event.dataTransfer?.files ?? [])]);
    };
    addEventListener('dragover', over);
    addEventListener('dragleave', leave);
    addEventListener('drop', drop);
    return () => {
      removeEventListener('dragover', over);
      removeEventListener('dragleave', leave);
      removeEventListener('drop', drop);
    };
  }, [onFiles]);
  return isOver;
}

/** Largest file that is read, in bytes. */
const mostBytes = 512 * 1024 * 1024;

/** The texts of files, or why they cannot be read. */
export async function readTexts(files: readonly File[]): Promise<{ name: string; text: string }[] | string> {
  const large = files.find(({ size }) => size > mostBytes);
  if (large !== undefined)
    return `${large.name} has ${large.size.toLocaleString('en')} bytes; at most ${mostBytes.toLocaleString('en')} are opened here.`;
  try {
    return await Promise.all(files.map(async (file) => ({ name: file.name, text: await file.text() })));
  } catch (error) {
    return `${files.map(({ name }) => name).join(', ')}: ${(error as Error).message} A folder cannot be opened: choose the files in it.`;
  }
}
