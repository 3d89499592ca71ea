/** @file The studio: served by a command, or written into one file. */
export { readLiveLines } from './server/live-history.ts';
export { type PageData, pageWith, type StudioFile } from './server/page-file.ts';
export { type Studio, type StudioOptions, serveStudio } from './server/server.ts';
