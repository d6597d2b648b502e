import { randomUUID } from 'node:crypto';
import type { Fence } from 'nestjs-fencing';
import type { FencedDatabase } from 'nestjs-fencing/testing';
import type { EntityManager } from 'typeorm';
import { BareFence } from '../support/bare-fence.js';

/** The fence on PostgreSQL, on a database of one test worker; `spoil` may put something between the contract and it. */
export async function fencedDatabase(
  spoil: (fence: Fence<EntityManager>) => Fence<EntityManager> = (fence) => fence,
): Promise<FencedDatabase<EntityManager>> {
  const run = randomUUID();
  const bares: BareFence[] = [];
  const observer = await BareFence.open();
  await observer.dataSource.query('CREATE TABLE IF NOT EXISTS contract_noted (run text, text text)');
  return {
    open: async () => {
      const bare = await BareFence.open({ check: false });
      bares.push(bare);
      return spoil(bare.fence);
    },
    note: async (manager, text) => {
      await manager.query('INSERT INTO contract_noted VALUES ($1, $2)', [run, text]);
    },
    noted: async () => {
      const found = 'SELECT text FROM contract_noted WHERE run = $1';
      return (await observer.dataSource.query<{ text: string }[]>(found, [run])).map(({ text }) => text);
    },
    close: async () => {
      // Their fences are closed already.
      for (const bare of bares) await bare.dataSource.destroy();
      await observer.close();
    },
  };
}
