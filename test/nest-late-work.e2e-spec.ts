import { afterAll, beforeAll, describe, expect, it, jest } from '@jest/globals';
import { Logger } from '@nestjs/common';
import { LeaseLostError, LeaseReleasedError, StaleGenerationError } from 'nestjs-fencing';
import { FencedRepository, GenerationColumn } from 'nestjs-fencing/typeorm';
import { Column, Entity, PrimaryColumn } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually, Gate } from './support/gate.js';
import { forkWorker } from './support/workers.js';

@Entity()
class LateRow {
  @PrimaryColumn('text') id!: string;
  @Column('text', { nullable: true }) text?: string;
  @GenerationColumn({ trigger: false }) generation!: number;
}

describe('work that outlives its leased call', () => {
  let app: FencedApp;
  beforeAll(async () => {
    app = await startFencedApp({ entities: [LateRow] });
    await app.dataSource.query('DROP TABLE IF EXISTS late_work');
    await app.dataSource.query('CREATE TABLE late_work (text text)');
  });
  afterAll(async () => {
    await app.dataSource.query('DROP TABLE late_work');
    await app.close();
  });

  it('is refused, whoever has the key; takes leases of its own; and never ends the process', async () => {
    const worker = forkWorker(new URL('./nest-late-work.worker.ts', import.meta.url), [], {
      NODE_OPTIONS: '--unhandled-rejections=strict',
    });
    await worker.atGate('late');
    const generation = await worker.waitFor<number>('returned');
    const between = (await app.fencing.run('left-behind', {}, async (lease) => {
      await app.fencing.write({}, () => app.dataSource.query(`INSERT INTO late_work VALUES ('by the next')`));
      return lease.generation;
    }))!;
    worker.openGate('late');
    const outcomes = await worker.waitFor<Record<string, unknown>>('outcomes');
    // Most of it nobody awaits; each refusal is reported, and that is how the test knows that all have been.
    const reports = (of: string) => worker.stderr.split(`${of} was refused: Lease #`).length - 1;
    await eventually(() => reports('Leaving.write') >= 8 && reports('FencingService.write') >= 1);
    worker.openGate('the end');
    expect(await worker.exited).toEqual({ code: 0, signal: null });

    expect(outcomes).toMatchObject({
      awaited: 'LEASE_RELEASED',
      listener: 'LEASE_RELEASED',
      current: 'released',
    });
    expect(between).toBeGreaterThan(generation);
    expect(outcomes.listenerOfItsOwn).toBeGreaterThan(between);
    expect(outcomes.own).toBeGreaterThan(0);
    const rows = await app.dataSource.query('SELECT text FROM late_work ORDER BY text');
    expect((rows as { text: string }[]).map(({ text }) => text)).toEqual([
      'by the next',
      'in time',
      'under a new lease',
      'under another lease',
    ]);
  });

  it('of a call whose lease was lost: refused under that lease, and free to take a new one once the call is over', async () => {
    const { fencing } = app;
    const over = new Gate();
    let underIt!: Promise<unknown>;
    let underItsOwn!: Promise<unknown>;
    const call = fencing.run('lost', {}, async (lease) => {
      underIt = over.wait().then(() => fencing.write({}, () => 'accepted'));
      underItsOwn = over.wait().then(() =>
        fencing.run('lost', { waitMs: 10_000 }, async (own) => {
          await fencing.write({}, () => undefined);
          return own.generation - lease.generation;
        }),
      );
      await fencing.revoke('lost');
      await fencing.write({}, () => undefined).catch(() => undefined);
      // While the call runs, what it calls stands on its lease, lost as it is.
      await expect(fencing.run('lost', {}, () => 'joined')).rejects.toMatchObject({
        code: 'STALE_GENERATION',
      });
    });
    await expect(call).rejects.toThrow(LeaseLostError);
    over.open();
    await expect(underIt).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    await expect(underItsOwn).resolves.toBeGreaterThan(0);
  });

  it('that nobody awaits is reported also where its lease was lost, or it writes through a FencedRepository', async () => {
    const unhandled = jest.fn();
    process.on('unhandledRejection', unhandled);
    const report = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
    const { fencing, dataSource } = app;
    const late = new FencedRepository(dataSource.manager, LateRow);
    const over = new Gate();
    const leave = () => {
      void over.wait().then(() => {
        void fencing.write({}, () => 'accepted');
        void late.update('a', { text: '' });
        void late.delete('a');
        void late.upsert({ id: 'a' });
        void late.save(Object.assign(new LateRow(), { id: 'a' }));
      });
    };
    await fencing.run('released', {}, leave);
    const lost = fencing.run('lost', {}, async () => {
      leave();
      await fencing.revoke('lost');
      await fencing.write({}, () => undefined);
    });
    await expect(lost).rejects.toThrow(StaleGenerationError);
    over.open();
    await eventually(() => report.mock.calls.length >= 10);
    const told = report.mock.calls.map(([line]) => String(line).replace(/(\(\))? was refused.*/, ''));
    const each = ['write', 'update', 'delete', 'upsert', 'save'].map(
      (name) => `${name === 'write' ? 'FencingService' : 'FencedRepository'}.${name}`,
    );
    expect(told.sort()).toEqual([...each, ...each].sort());
    report.mockRestore();
    process.off('unhandledRejection', unhandled);
    expect(unhandled).not.toHaveBeenCalled();
  });

  it('that somebody awaits rejects there, and is reported all the same', async () => {
    const report = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
    const over = new Gate();
    let late!: Promise<unknown>;
    await app.fencing.run('reported', {}, () => {
      late = over.wait().then(() => app.fencing.write({}, () => 'accepted'));
    });
    over.open();
    await expect(late).rejects.toThrow(LeaseReleasedError);
    expect(report.mock.calls).toEqual([
      [expect.stringMatching(/^FencingService\.write was refused: Lease #\w+ .*has ended/)],
    ]);
    report.mockRestore();
  });
});
