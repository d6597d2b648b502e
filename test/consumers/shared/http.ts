import assert from 'node:assert/strict';
import { Controller, type INestApplication, Module, Param, Post } from '@nestjs/common';
import { Leased } from 'nestjs-fencing';
import { prove } from './prove.js';
import { ReportsService } from './reports.js';
import { imports } from './setup.js';

@Controller('reports')
class ReportsController {
  constructor(private readonly reports: ReportsService) {}

  @Post(':id')
  @Leased('report:{params.id}')
  async rebuild(@Param('id') id: string): Promise<number> {
    return this.reports.rebuild(id);
  }
}

@Module({ imports, controllers: [ReportsController], providers: [ReportsService] })
export class HttpAppModule {}

/** Proves an HTTP application by requests. */
export async function proveHttp(app: INestApplication): Promise<void> {
  await app.listen(0, '127.0.0.1');
  const url = await app.getUrl();
  const statuses: number[] = [];
  const generations: (string | null)[] = [];
  let problem: { type: string | null; code: unknown } | undefined;
  const post = async (customerId: string) => {
    const answer = await fetch(`${url}/reports/${encodeURIComponent(customerId)}`, { method: 'POST' });
    generations.push(answer.headers.get('fencing-generation'));
    if (answer.status === 409) {
      const { code } = (await answer.json()) as { code: unknown };
      problem = { type: answer.headers.get('content-type'), code };
    }
    statuses.push(answer.status);
  };
  await prove(app, (customerId) => void post(customerId), `report:${encodeURIComponent('c 1/ä')}`);
  while (!statuses.includes(409)) await new Promise((resolve) => setTimeout(resolve, 20));
  console.log(`answered: ${statuses.join(', ')}`);
  assert.ok(Number(generations[0]), 'the answer names its generation');
  assert.match(String(problem?.type), /^application\/problem\+json/);
  assert.equal(problem?.code, 'STALE_GENERATION');
  await app.close();
}
