/** @file A rank that says where it is without ever pausing. For tests. */
import { writeSync } from 'node:fs';
import { rankStatus } from '../../dist/index.js';

for (let slot = 1; ; slot++) {
  rankStatus.set({ slot, action: '1RECV_F0', waitingFor: 4 });
  if (slot === 1000) writeSync(1, 'ready\n');
}
