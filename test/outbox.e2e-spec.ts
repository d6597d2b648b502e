import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { FencingService } from 'nestjs-fencing';
import request from 'supertest';
import type { App } from 'supertest/types.js';
import { DataSource } from 'typeorm';
import type { OutboxDispatcher } from '../src/payments/outbox-dispatcher.js';
import type { PaymentsService } from '../src/payments/payments.service.js';
import { eventually } from './support/gate.js';
import { FakePaymentProvider } from './support/payment-provider.js';
import { freshDatabase } from './support/postgres-server.js';
import { forkWorker } from './support/workers.js';

describe('the outbox of the reference app', () => {
  const { DATABASE_URL } = process.env;
  let database: Awaited<ReturnType<typeof freshDatabase>>;
  let provider: FakePaymentProvider;
  let app: INestApplication<App>;
  let dispatcher: OutboxDispatcher;
  let payments: PaymentsService;

  beforeAll(async () => {
    database = await freshDatabase();
    provider = new FakePaymentProvider();
    process.env.DATABASE_URL = database.url;
    process.env.PAYMENT_PROVIDER_URL = await provider.listen();
    // The tests dispatch by hand.
    process.env.OUTBOX_INTERVAL_MS = '1000000';
    const { AppModule } = await import('../src/app.module.js');
    const module = await Test.createTestingModule({ imports: [AppModule] }).compile();
    app = module.createNestApplication<INestApplication<App>>({ logger: false });
    await app.init();
    const classes = {
      ...(await import('../src/payments/outbox-dispatcher.js')),
      ...(await import('../src/payments/payments.service.js')),
    };
    dispatcher = app.get(classes.OutboxDispatcher);
    payments = app.get(classes.PaymentsService);
  });
  afterAll(async () => {
    await app.close();
    await provider.close();
    process.env.DATABASE_URL = DATABASE_URL;
    delete process.env.PAYMENT_PROVIDER_URL;
    delete process.env.OUTBOX_INTERVAL_MS;
    await database.drop();
  });
  beforeEach(async () => {
    const { requests, charges, failures } = provider;
    requests.length = failures.length = 0;
    charges.clear();
    await query('TRUNCATE outbox_charge');
    await query(`UPDATE customer_order SET status = 'open', charge_id = NULL`);
  });

  const query = <Row = Record<string, unknown>>(sql: string): Promise<Row[]> =>
    app.get(DataSource).query(sql);
  const order = async (id = 'order-1') => (await query(`SELECT * FROM customer_order WHERE id = '${id}'`))[0];
  const outbox = () => query('SELECT * FROM outbox_charge ORDER BY id');
  /** Takes the key of the dispatcher from a process that is dead, or as one that believes that it is. */
  const freeOutbox = () => app.get(FencingService).revoke('outbox:charges');

  it('an order is charged: committed with the order, sent by the dispatcher, recorded', async () => {
    const answer = await request(app.getHttpServer()).post('/orders/order-1/charge').expect(202);
    expect(answer.body).toMatchObject({ id: 'order-1', status: 'charging' });
    expect(provider.requests).toEqual([]);
    expect(await dispatcher.dispatch()).toBe(1);
    expect(await order()).toMatchObject({ status: 'charged', charge_id: 'ch_1' });
    expect([...provider.charges.values()]).toEqual([{ id: 'ch_1', orderId: 'order-1', amountCents: 1_999 }]);
    expect(await dispatcher.dispatch()).toBe(0);
    expect(provider.requests).toHaveLength(1);
  });

  it('an order that is asked for again, also by several callers at once, is charged once', async () => {
    const answers = await Promise.all(
      Array.from({ length: 5 }, () => request(app.getHttpServer()).post('/orders/order-1/charge')),
    );
    expect(answers.map(({ status }) => status)).toEqual([202, 202, 202, 202, 202]);
    expect(await outbox()).toHaveLength(1);
    await dispatcher.dispatch();
    await request(app.getHttpServer()).post('/orders/order-1/charge').expect(202);
    await dispatcher.dispatch();
    expect(provider.charges.size).toBe(1);
    await request(app.getHttpServer()).post('/orders/nothing/charge').expect(404);
  });

  it('a request that was superseded leaves no effect behind: the effect row is part of the fenced write', async () => {
    const fencing = app.get(FencingService);
    const call = fencing.run('order:order-1', {}, async () => {
      await fencing.revoke('order:order-1');
      await payments.requestCharge('order-1');
    });
    await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
    expect(await outbox()).toEqual([]);
    await dispatcher.dispatch();
    expect(provider.requests).toEqual([]);
    expect(await order()).toMatchObject({ status: 'open' });
  });

  it('a dispatcher that is killed between sending and recording: sent again by another, charged once', async () => {
    await payments.charge('order-1');
    const held = provider.hold();
    const worker = forkWorker(new URL('./outbox.worker.ts', import.meta.url));
    await worker.waitFor('dispatching');
    await held.charged.wait();
    expect(await worker.kill()).toMatchObject({ signal: 'SIGKILL' });
    held.mayAnswer.open();
    expect(await order()).toMatchObject({ status: 'charging' });

    // The dead process holds the key until its ttl is over, or an operator frees it.
    expect(await dispatcher.dispatch()).toBeUndefined();
    await freeOutbox();
    expect(await eventually(() => dispatcher.dispatch())).toBe(1);
    expect(provider.requests).toHaveLength(2);
    expect(new Set(provider.requests).size).toBe(1);
    expect([...provider.charges.values()]).toEqual([{ id: 'ch_1', orderId: 'order-1', amountCents: 1_999 }]);
    expect(await order()).toMatchObject({ status: 'charged', charge_id: 'ch_1' });
  });

  it('an order that is charged anew after its rows came back from an old backup is charged once: the same key', async () => {
    await payments.charge('order-1');
    await dispatcher.dispatch();
    await query('TRUNCATE outbox_charge');
    await query(`UPDATE customer_order SET status = 'open', charge_id = NULL`);
    await payments.charge('order-1');
    expect(await dispatcher.dispatch()).toBe(1);
    expect(provider.requests).toHaveLength(2);
    expect(provider.charges.size).toBe(1);
    expect(await order()).toMatchObject({ status: 'charged', charge_id: 'ch_1' });
  });

  it('two dispatchers at once, of which one is late: both send, one records, charged once', async () => {
    await payments.charge('order-1');
    const held = provider.hold();
    const late = dispatcher.dispatch();
    await held.charged.wait();
    await freeOutbox();
    expect(await eventually(() => dispatcher.dispatch())).toBe(1);
    held.mayAnswer.open();
    await expect(late).rejects.toMatchObject({ code: expect.stringMatching(/STALE_GENERATION|LEASE_LOST/) });
    expect(provider.requests).toHaveLength(2);
    expect(provider.charges.size).toBe(1);
    expect(await order()).toMatchObject({ status: 'charged', charge_id: 'ch_1' });
  });

  it('one charge that fails does not hold up the others, and is sent again', async () => {
    await payments.charge('order-1');
    await payments.charge('order-2');
    provider.failures.push(503);
    expect(await dispatcher.dispatch()).toBe(1);
    expect(await order('order-2')).toMatchObject({ status: 'charged' });
    expect(await order('order-1')).toMatchObject({ status: 'charging' });
    expect(await dispatcher.dispatch()).toBe(1);
    expect(await order('order-1')).toMatchObject({ status: 'charged' });
    expect(provider.charges.size).toBe(2);
  });

  it('a charge that is declined for good is not sent again', async () => {
    await payments.charge('order-1');
    provider.failures.push(402);
    expect(await dispatcher.dispatch()).toBe(1);
    expect(await order()).toMatchObject({ status: 'declined', charge_id: null });
    expect(await dispatcher.dispatch()).toBe(0);
  });
});
