/** @file The entry of the page: reads what it was opened with, and shows it. In the page's worker: explores schedules. */
import { render } from 'preact';
import { App, type StudioData } from './views/app.tsx';
import { serveRequests } from './views/explore-worker.ts';

if (typeof document === 'undefined') serveRequests();
else {
  const element = document.getElementById('data');
  const given = JSON.parse(element?.textContent || '{}') as Partial<StudioData>;
  const data: StudioData = {
    files: Array.isArray(given.files) ? given.files : [],
    events: typeof given.events === 'string' ? given.events : null,
    lines: Array.isArray(given.lines) ? given.lines : null,
  };
  render(<App data={data} />, document.getElementById('app')!);
}
