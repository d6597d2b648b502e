import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Controller, Injectable, type INestMicroservice, Module, type OnModuleInit } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import {
  type ClientProxy,
  ClientProxyFactory,
  EventPattern,
  MessagePattern,
  Payload,
  Transport,
} from '@nestjs/microservices';
import { Cron, ScheduleModule, SchedulerRegistry } from '@nestjs/schedule';
import { Test } from '@nestjs/testing';
import { Redis } from 'ioredis';
import { CurrentLease, FencingModule, FencingService, type Lease, Leased } from 'nestjs-fencing';
import { redisLeases } from 'nestjs-fencing/redis';
import { lastValueFrom } from 'rxjs';
import { freePort } from '../scripts/services.mjs';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { eventually } from './support/gate.js';
import { Stage } from './support/stage.js';

const stage = new Stage();
const once = { waitMs: 0 } as const;
const skip = { waitMs: 0, onBusy: 'skip' } as const;
const YEARLY = '0 0 1 1 *';

@Injectable()
class Jobs {
  @Leased('cron-above', skip)
  @Cron(YEARLY, { name: 'below', waitForCompletion: true })
  async above(@CurrentLease() lease?: Lease): Promise<void> {
    await stage.enter(lease);
  }

  @Cron(YEARLY, { name: 'above', waitForCompletion: true })
  @Leased('cron-below', skip)
  async below(@CurrentLease() lease?: Lease): Promise<void> {
    await stage.enter(lease);
  }

  @Leased('event-above:{0.id}', once)
  @OnEvent('event.above', { suppressErrors: false })
  async onAbove(_event: { id: number }, @CurrentLease() lease?: Lease): Promise<void> {
    await stage.enter(lease);
  }

  @OnEvent('event.below', { suppressErrors: false })
  @Leased((event: { id: number }) => `event-below:${event.id}`, once)
  async onBelow(_event: { id: number }, @CurrentLease() lease?: Lease): Promise<void> {
    await stage.enter(lease);
  }
}

describe('a leased method has its lease when it is started by', () => {
  const start = () =>
    startFencedApp({
      fence: false,
      imports: [ScheduleModule.forRoot(), EventEmitterModule.forRoot()],
      providers: [Jobs],
    });
  let app: FencedApp;
  /** The same application a second time, as in another process. */
  let pod: FencedApp;
  beforeAll(async () => {
    app = await start();
    pod = await start();
  });
  afterAll(async () => {
    await app.close();
    await pod.close();
  });

  it.each(['above', 'below'])('@Cron, with the decorator %s @Leased', async (name) => {
    const jobs = [app, pod].map((one) => one.get(SchedulerRegistry).getCronJob(name));
    let ticks = 0;
    await stage.provesExclusion(
      () => jobs[ticks++ % 2]!.fireOnTick(),
      async (tick) => expect(await tick).toBeUndefined(), // skipped, not failed
    );
    expect(ticks).toBe(3);
  });

  it.each(['event.above', 'event.below'])('@OnEvent (%s)', (event) =>
    stage.provesExclusion(() => app.get(EventEmitter2).emitAsync(event, { id: 7 })),
  );

  it('a bare app.get(Service), outside any request', () =>
    stage.provesExclusion(() => app.get(Jobs).onAbove({ id: 1 })));

  it('FencingService.run', () =>
    stage.provesExclusion(() => app.fencing.run('service', once, (lease) => stage.enter(lease))));

  it('FencingService.acquire', () =>
    stage.provesExclusion(async () => {
      await using lease = await app.fencing.acquire('acquired', once);
      await stage.enter(lease);
    }));

  it('a command-line application (createApplicationContext)', async () => {
    const redis = new Redis(process.env.REDIS_URL!);
    @Module({ imports: [FencingModule.forRoot({ leases: redisLeases(redis) })], providers: [Jobs] })
    class CliModule {}
    const cli = await NestFactory.createApplicationContext(CliModule, { logger: false });
    await stage.provesExclusion(() => cli.get(Jobs).onBelow({ id: 2 }));
    await cli.close();
    redis.disconnect();
  });
});

describe('a leased method may be called from onModuleInit of another module', () => {
  class FromFactory {
    @Leased('boot-factory', once)
    async run(@CurrentLease() lease?: Lease): Promise<number> {
      return lease!.generation;
    }
  }

  @Injectable()
  class Eager implements OnModuleInit {
    generations: number[] = [];
    constructor(
      readonly fencing: FencingService,
      readonly fromFactory: FromFactory,
    ) {}

    @Leased('boot', once)
    async run(@CurrentLease() lease?: Lease): Promise<number> {
      return lease!.generation;
    }

    async onModuleInit(): Promise<void> {
      this.generations.push(await this.run());
      this.generations.push(await this.fromFactory.run());
      this.generations.push((await this.fencing.run('boot', once, (lease) => lease.generation))!);
    }
  }

  it.each([true, false])('with isGlobal: %s', async (isGlobal) => {
    const redis = new Redis(process.env.REDIS_URL!);
    const fencing = FencingModule.forRoot({ leases: redisLeases(redis), isGlobal });
    @Module({
      imports: isGlobal ? [] : [fencing],
      providers: [Eager, { provide: FromFactory, useFactory: () => new FromFactory() }],
    })
    class EagerModule {}
    const module = await Test.createTestingModule({ imports: [fencing, EagerModule] }).compile();
    await module.init();
    const { generations } = module.get(Eager, { strict: false });
    expect(generations).toHaveLength(3);
    expect(generations[2]).toBeGreaterThan(generations[0]!);
    await module.close();
    redis.disconnect();
  });
});

describe('a leased message handler (TCP)', () => {
  @Controller()
  class Handlers {
    @Leased('message-above:{0.id}', once)
    @MessagePattern('above')
    async above(@Payload() _data: { id: number }, @CurrentLease() lease?: Lease): Promise<number> {
      await stage.enter(lease);
      return lease!.generation;
    }

    @MessagePattern('below')
    @Leased('message-below:{body.id}', once)
    async below(@Payload() _data: { id: number }, @CurrentLease() lease?: Lease): Promise<number> {
      await stage.enter(lease);
      return lease!.generation;
    }

    @EventPattern('event')
    @Leased('message-event', skip)
    async onEvent(@CurrentLease() lease?: Lease): Promise<void> {
      await stage.enter(lease);
    }
  }

  let app: INestMicroservice;
  let client: ClientProxy;
  let redis: Redis;
  beforeAll(async () => {
    redis = new Redis(process.env.REDIS_URL!);
    const port = await freePort();
    const module = await Test.createTestingModule({
      imports: [FencingModule.forRoot({ leases: redisLeases(redis) })],
      controllers: [Handlers],
    }).compile();
    app = module.createNestMicroservice({ transport: Transport.TCP, options: { port }, logger: false });
    await app.listen();
    client = ClientProxyFactory.create({ transport: Transport.TCP, options: { port } });
    await client.connect();
  });
  afterAll(async () => {
    await client.close();
    await app.close();
    redis.disconnect();
  });

  it.each(['above', 'below'])('excludes, with @Leased %s; the sender is told by code', (pattern) =>
    stage.provesExclusion(
      async () => {
        const generation = await lastValueFrom(client.send<number>(pattern, { id: 3 }));
        expect(stage.generations).toContain(generation);
      },
      (second) =>
        expect(second).rejects.toMatchObject({
          status: 'error',
          code: 'LEASE_BUSY',
          message: expect.stringMatching(/^Lease #\w{10} is held/),
        }),
    ),
  );

  it('a missing part of the key is refused, and the sender is told', async () => {
    await expect(lastValueFrom(client.send('below', {}))).rejects.toMatchObject({ code: 'INVALID_KEY' });
  });

  it('@EventPattern handlers too', async () => {
    const before = stage.generations.length;
    client.emit('event', {}).subscribe();
    await eventually(() => stage.generations.length > before);
    expect(stage.generations.at(-1)).toBeGreaterThan(0);
  });
});
