import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { AppModule } from './app.module.js';

const app = await NestFactory.create(AppModule);
// SIGTERM lets running rebuilds end, releases their leases, and only then closes the connections.
app.enableShutdownHooks();
await app.listen(process.env.PORT ?? 3000, '127.0.0.1');

const url = await app.getUrl();
new Logger('Report publisher').log(
  `Listening on ${url}. Open it in a browser, or try:  curl -X POST ${url}/reports/alice/rebuild`,
);
