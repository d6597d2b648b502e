// The examples of docs/package.md and docs/everyday.md, which are a test themselves.
import { expect, it } from '@jest/globals';
import { Injectable } from '@nestjs/common';
import { keyMap, type KeyMapEntry, Leased, leaseKey } from 'nestjs-fencing';

// #region share-a-key
export const reportKey = leaseKey('report:{customerId}'); // in a package that both services depend on

@Injectable()
export class ReportsService {
  @Leased((customerId: string) => reportKey({ customerId }))
  async rebuild(customerId: string): Promise<string> {
    return customerId;
  }
}
// #endregion

/** What the other service prints. */
const billing: KeyMapEntry[] = [
  {
    method: 'Invoices.attachReport',
    instance: 'default',
    keys: [
      { template: 'invoice:{0}', shape: 'invoice:{}' },
      { template: 'report:{1.id}', shape: 'report:{}' },
    ],
  },
];

// #region compare-keys
// billing: what `npx nestjs-fencing keys` printed for the other service, from a file of its last build
it('locks a report as the billing service does', () => {
  expect(shapes(keyMap(), 'report:')).toEqual(shapes(billing, 'report:'));
});

function shapes(map: readonly KeyMapEntry[], prefix: string): string[] {
  const all = map.flatMap(({ keys }) => keys.map(({ shape }) => shape ?? 'unknown'));
  return [...new Set(all)].filter((shape) => shape.startsWith(prefix)).sort();
}
// #endregion

it('and would notice another name for it', () => {
  const renamed = billing.map((entry) => ({
    ...entry,
    keys: entry.keys.map((key) => ({ ...key, shape: key.shape!.replace('report:', 'report:v2:') })),
  }));
  expect(shapes(renamed, 'report:')).not.toEqual(shapes(keyMap(), 'report:'));
});
