import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { CurrentLease, FencedWrite, type Lease, Leased, StaleGenerationError } from 'nestjs-fencing';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';

@Entity('stale_document')
class Document {
  @PrimaryColumn('text') id!: string;
  @Column('text') text!: string;
  @Column('bigint') generation!: string;
}

@Injectable()
class Documents {
  constructor(@InjectRepository(Document) readonly documents: Repository<Document>) {}

  @Leased('document:{0}', { ttlMs: 10_000 })
  async run<T>(id: string, work: (lease: Lease) => Promise<T>, @CurrentLease() lease?: Lease): Promise<T> {
    return work(lease!);
  }

  @FencedWrite()
  async write<T>(work: (documents: Repository<Document>) => Promise<T>): Promise<T> {
    return work(this.documents);
  }
}

/** Field report 8: an entity that was loaded long ago is written back. */
describe('an owner whose lease was taken over', () => {
  let apps: FencedApp[];
  let first: Documents;
  let second: Documents;

  beforeAll(async () => {
    const options = { entities: [Document], providers: [Documents] };
    apps = [await startFencedApp(options), await startFencedApp(options)];
    [first, second] = apps.map((app) => app.get(Documents)) as [Documents, Documents];
  });
  afterAll(async () => {
    await Promise.all(apps.map((app) => app.close()));
  });

  const WRITES: Record<string, (documents: Repository<Document>, old: Document) => Promise<unknown>> = {
    'save() of a changed entity': (documents, old) => documents.save(Object.assign(old, { text: 'late' })),
    'save() of an unchanged entity, which sends no UPDATE': (documents, old) => documents.save(old),
    'upsert()': (documents, old) => documents.upsert({ ...old, text: 'late' }, ['id']),
    'orUpdate() of a query builder': (documents, old) =>
      documents
        .createQueryBuilder()
        .insert()
        .values({ ...old, text: 'late' })
        .orUpdate(['text', 'generation'], ['id'])
        .execute(),
    'update()': (documents, { id }) => documents.update({ id }, { text: 'late' }),
    'remove()': (documents, old) => documents.remove(old),
  };

  it.each(Object.entries(WRITES))(
    '%s is refused, and the newer data stays as it is',
    async (name, lateWrite) => {
      const id = name;
      const call = first.run(id, async (lease) => {
        const mine = { id, text: 'of the first', generation: String(lease.generation) };
        await first.write((documents) => documents.save(mine));
        const loaded = await first.documents.findOneByOrFail({ id });

        await apps[1]!.fencing.revoke(`document:${encodeURIComponent(id)}`);
        const newer = await second.run(id, async ({ generation }) => {
          const document = await second.documents.findOneByOrFail({ id });
          Object.assign(document, { text: 'of the second', generation: String(generation) });
          return second.write((documents) => documents.save(document));
        });

        const late = first.write((documents) => lateWrite(documents, loaded));
        await expect(late).rejects.toBeInstanceOf(StaleGenerationError);
        expect(await second.documents.findOneByOrFail({ id })).toEqual(newer);
        await late;
      });
      await expect(call).rejects.toBeInstanceOf(StaleGenerationError);
      await first.documents.delete({ id });
    },
  );
});
