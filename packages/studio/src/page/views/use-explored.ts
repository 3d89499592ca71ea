/** @file Explored schedules for a view: at once where that is quick, else from a worker as they come. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { type Explored, refused } from '../model/explore.ts';
import { areQuick, type ExploreJob, runJob } from '../model/explore-request.ts';
import { unpackExplored } from '../model/transfer.ts';
import { ExploreWorker } from './explore-worker.ts';

/** What is known so far. */
export interface ExploredList {
  /** In the order of the jobs, without those that are missing. */
  readonly all: readonly Explored[];
  /** The names of those that are missing. */
  readonly missing: readonly string[];
  /** Whether they belong to the jobs before: there is nothing new to show yet. */
  readonly isOld: boolean;
}

/** What is shown, and of which jobs. */
interface Shown extends Pick<ExploredList, 'all' | 'missing'> {
  readonly key: string;
}

/** The worker starts when nothing has changed for so many milliseconds. */
const settleMs = 100;
/** How often answers are shown while more are to come: all at once where they are quick. */
const showMs = 500;

/** Explores jobs; `key` tells when they have changed. */
export function useExplored(jobs: readonly ExploreJob[], key: string): ExploredList {
  const quick = useMemo(
    (): Shown | null => (areQuick(jobs) ? { all: jobs.map(runJob), missing: [], key } : null),
    [key],
  );
  const worker = useRef<ExploreWorker | null>(null);
  const [shown, show] = useState<Shown>({ all: [], missing: jobs.map(({ name }) => name), key });
  useEffect(() => {
    if (quick !== null) {
      show(quick);
      return undefined;
    }
    const own = (worker.current ??= new ExploreWorker());
    const found: Explored[] = [];
    const update = (): void =>
      show({ all: [...found], missing: jobs.slice(found.length).map(({ name }) => name), key });
    let updates: ReturnType<typeof setInterval> | undefined;
    const settled = setTimeout(() => {
      updates = setInterval(() => found.length > 0 && update(), showMs);
      own.run(jobs, (answer, at) => {
        found.push('error' in answer ? refused(jobs[at]!.name, answer.error) : unpackExplored(answer.explored));
        if (found.length < jobs.length) return;
        clearInterval(updates);
        update();
      });
    }, settleMs);
    return () => {
      clearTimeout(settled);
      clearInterval(updates);
      own.stop();
    };
  }, [key]);
  useEffect(() => () => worker.current?.close(), []);
  const { all, missing, key: of } = quick ?? shown;
  return { all, missing, isOld: of !== key };
}
