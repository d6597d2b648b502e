import 'reflect-metadata';
import { Controller, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ClientProxyFactory, MessagePattern, Payload, Transport } from '@nestjs/microservices';
import { createServer, type AddressInfo } from 'node:net';
import { Leased } from 'nestjs-fencing';
import { prove, run } from './prove.js';
import { ReportsService } from './reports.js';
import { imports } from './setup.js';

@Controller()
class ReportsController {
  constructor(private readonly reports: ReportsService) {}

  @MessagePattern('rebuild')
  @Leased('report:{0.id}')
  async rebuild(@Payload() { id }: { id: string }): Promise<number> {
    return this.reports.rebuild(id);
  }
}

@Module({ imports, controllers: [ReportsController], providers: [ReportsService] })
class AppModule {}

run(async () => {
  const options = { host: '127.0.0.1', port: await freePort() };
  const app = await NestFactory.createMicroservice(AppModule, {
    transport: Transport.TCP,
    options,
    logger: ['warn'],
  });
  await app.listen();
  const client = ClientProxyFactory.create({ transport: Transport.TCP, options });
  const errors: unknown[] = [];
  const send = (id: string) => {
    client.send('rebuild', { id }).subscribe({ error: (error: unknown) => errors.push(error) });
  };
  await prove(app, send, `report:${encodeURIComponent('c 1/ä')}`);
  while (errors.length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  console.log(`the sender was told: ${JSON.stringify(errors[0])}`);
  await client.close();
});

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
