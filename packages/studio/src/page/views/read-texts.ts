/** @file The texts of files that a reader gives; compressed ones are unpacked. */

/** Largest file that is read, unpacked, in bytes. */
const mostBytes = 512 * 1024 * 1024;

/** The texts of files, or why they cannot be read. */
export async function readTexts(files: readonly File[]): Promise<{ name: string; text: string }[] | string> {
  const texts: { name: string; text: string }[] = [];
  for (const file of files) {
    const text = await readText(file);
    if (typeof text !== 'string') return `${file.name} ${text.problem}`;
    texts.push({ name: file.name.replace(/\.gz$/i, ''), text });
  }
  return texts;
}

interface Problem {
  readonly problem: string;
}

async function readText(file: File): Promise<string | Problem> {
  if (file.size > mostBytes) return tooLarge(file.size);
  let isPacked = false;
  try {
    const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    isPacked = head[0] === 0x1f && head[1] === 0x8b;
    const text = isPacked ? await unpack(file) : await file.text();
    if (typeof text === 'string' && text.includes('\0'))
      return { problem: 'is not text; give recordings, plans, schedules or traces as JSON or CSV.' };
    return text;
  } catch (error) {
    const { message } = error as Error;
    if (isPacked) return { problem: `cannot be unpacked: ${message}` };
    return { problem: `cannot be read: ${message} A folder cannot be opened: choose the files in it.` };
  }
}

/** The text of a file that was compressed by gzip, as long as it is not too large. */
async function unpack(file: File): Promise<string | Problem> {
  const reader = file.stream().pipeThrough(new DecompressionStream('gzip')).getReader();
  const decoder = new TextDecoder();
  const parts: string[] = [];
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return parts.join('') + decoder.decode();
    bytes += value.length;
    if (bytes > mostBytes) {
      await reader.cancel();
      return tooLarge(bytes);
    }
    parts.push(decoder.decode(value, { stream: true }));
  }
}

function tooLarge(bytes: number): Problem {
  const [has, most] = [bytes, mostBytes].map((count) => count.toLocaleString('en'));
  return { problem: `has ${has} bytes or more; at most ${most} are opened here.` };
}
