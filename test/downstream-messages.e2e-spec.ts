import type { Server } from 'node:net';
import { Controller, type INestApplication, Injectable, UsePipes } from '@nestjs/common';
import {
  type ClientProxy,
  ClientProxyFactory,
  MessagePattern,
  Payload,
  Transport,
} from '@nestjs/microservices';
import { InjectRepository } from '@nestjs/typeorm';
import { AcceptFencing, CurrentLease, FencedWrite, fencingHeaders, type Lease } from 'nestjs-fencing';
import { MemoryLeaseStore } from 'nestjs-fencing/testing';
import { firstValueFrom } from 'rxjs';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { freshDatabase } from './support/postgres-server.js';

@Entity('shipment')
class Shipment {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
}

@Injectable()
class Shipments {
  readonly messages: unknown[] = [];
  constructor(@InjectRepository(Shipment) private readonly shipments: Repository<Shipment>) {}

  @FencedWrite()
  async write(message: { id: string; text: string }, @CurrentLease() lease?: Lease): Promise<number> {
    this.messages.push(message);
    await this.shipments.save(message);
    return lease!.generation;
  }
}

/** Knows all fields of a message, and refuses any other. */
const strict = {
  transform(message: object) {
    const unknown = Object.keys(message).filter((name) => !['id', 'text'].includes(name));
    if (unknown.length > 0) throw new Error(`unknown fields: ${unknown.join(', ')}`);
    return message;
  },
};

@Controller()
class ShipmentsController {
  constructor(private readonly shipments: Shipments) {}

  @MessagePattern('ship')
  @AcceptFencing({ trust: () => true })
  @UsePipes(strict)
  ship(@Payload() message: { id: string; text: string }) {
    return this.shipments.write(message);
  }
}

describe('a service downstream, over TCP', () => {
  let upstream: FencedApp;
  let downstream: FencedApp;
  let client: ClientProxy;
  let database: Awaited<ReturnType<typeof freshDatabase>>;

  beforeAll(async () => {
    database = await freshDatabase();
    upstream = await startFencedApp();
    downstream = await startFencedApp({
      http: true,
      databaseUrl: database.url,
      leases: new MemoryLeaseStore(),
      entities: [Shipment],
      controllers: [ShipmentsController],
      providers: [Shipments],
    });
    const app = downstream.app as INestApplication;
    const service = app.connectMicroservice(
      { transport: Transport.TCP, options: { host: '127.0.0.1', port: 0 } },
      { inheritAppConfig: true },
    );
    await app.startAllMicroservices();
    const { port } = service.unwrap<Server>().address() as { port: number };
    client = ClientProxyFactory.create({ transport: Transport.TCP, options: { host: '127.0.0.1', port } });
  });
  afterAll(async () => {
    client.close();
    await upstream.close();
    await downstream.close();
    await database.drop();
  });
  beforeEach(() => downstream.dataSource.query('TRUNCATE shipment'));

  const under = <T>(key: string, work: (lease: Lease) => Promise<T>) =>
    upstream.fencing.run(key, { ttlMs: 60_000 }, work) as Promise<T>;
  const send = (message: object) => firstValueFrom(client.send<number>('ship', message));
  const rows = () => downstream.dataSource.getRepository(Shipment).find();

  it('writes under the generation that the message brings; pipes and handler get the message without it', async () => {
    await under('shipment:1', async (lease) => {
      expect(await send({ id: '1', text: 'x', ...fencingHeaders() })).toBe(lease.generation);
    });
    expect(downstream.get(Shipments).messages).toEqual([{ id: '1', text: 'x' }]);
    expect(await rows()).toEqual([{ id: '1', text: 'x' }]);
  });

  it('refuses a message of an older grant than it has accepted, by a code that the sender gets', async () => {
    const older = await under('shipment:2', async () => fencingHeaders());
    await under('shipment:2', () => send({ id: '2', text: 'newer', ...fencingHeaders() }));
    await expect(send({ id: '2', text: 'late', ...older })).rejects.toMatchObject({
      code: 'STALE_GENERATION',
    });
    expect(await rows()).toEqual([{ id: '2', text: 'newer' }]);
  });

  it('refuses messages without a grant, or with a malformed one', async () => {
    await expect(send({ id: '3', text: 'x' })).rejects.toMatchObject({ code: 'INVALID_FENCING_HEADERS' });
    const headers = await under('shipment:3', async () => fencingHeaders());
    const malformed = { ...headers, 'Fencing-Generation': '1e9' };
    await expect(send({ id: '3', text: 'x', ...malformed })).rejects.toMatchObject({
      code: 'INVALID_FENCING_HEADERS',
    });
    expect(await rows()).toEqual([]);
  });
});
