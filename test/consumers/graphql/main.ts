import 'reflect-metadata';
import { ApolloDriver, type ApolloDriverConfig } from '@nestjs/apollo';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { Args, GraphQLModule, Int, Mutation, Query, Resolver } from '@nestjs/graphql';
import { FencedWrite, Leased } from 'nestjs-fencing';
import { proveRefused } from './prove-refused.js';
import { prove, run } from './prove.js';
import { ReportsService } from './reports.js';
import { imports } from './setup.js';

@Resolver()
class ReportsResolver {
  constructor(private readonly reports: ReportsService) {}

  @Query(() => Int)
  async total(@Args('id') id: string): Promise<number> {
    return (await this.reports.totalOf(id)) ?? -1;
  }

  @Leased('report:{0}')
  @Mutation(() => Int)
  async rebuild(@Args('id') id: string): Promise<number> {
    return this.reports.rebuild(id);
  }
}

@Resolver()
class CarelessResolver {
  @Mutation(() => Boolean)
  @FencedWrite()
  async careless(): Promise<boolean> {
    return true;
  }
}

@Module({
  imports: [
    ...imports,
    GraphQLModule.forRoot<ApolloDriverConfig>({ driver: ApolloDriver, autoSchemaFile: true }),
  ],
  providers: [ReportsService, ReportsResolver],
})
class AppModule {}

run(async () => {
  await proveRefused(CarelessResolver, 'CarelessResolver.careless: it is a resolver');
  const app = await NestFactory.create(AppModule, { logger: ['warn'] });
  await app.listen(0, '127.0.0.1');
  const url = `${await app.getUrl()}/graphql`;
  const codes: string[] = [];
  const rebuild = async (id: string) => {
    const query = 'mutation ($id: String!) { rebuild(id: $id) }';
    const answer = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ query, variables: { id } }),
    });
    const { errors = [] } = (await answer.json()) as { errors?: { message: string }[] };
    codes.push(...errors.map(({ message }) => message));
  };
  await prove(app, (id) => void rebuild(id), `report:${encodeURIComponent('c 1/ä')}`);
  while (codes.length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  console.log(`errors: ${codes.join(', ')}`);
  await app.close();
});
