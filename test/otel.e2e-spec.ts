import { readFileSync } from 'node:fs';
import { get as httpGet } from 'node:http';
import { createServer } from 'node:net';
import { text as textOf } from 'node:stream/consumers';
import { Injectable } from '@nestjs/common';
import { InjectRepository } from '@nestjs/typeorm';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from '@jest/globals';
import { context, SpanStatusCode, trace } from '@opentelemetry/api';
import {
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-node';
import {
  FENCING_EVENT_NAMES,
  FencedWrite,
  FencingConfigError,
  Leased,
  keyLabel,
  memoryLeases,
} from 'nestjs-fencing';
import { instrumentFencing } from 'nestjs-fencing/otel';
import { Column, Entity, PrimaryColumn, type Repository } from 'typeorm';
import { FencingEmitter } from '../libs/fencing/src/core/events.js';
import { tracing } from '../libs/fencing/src/core/tracing.js';
import { startMetrics } from './readme/observability.js';
import { type FencedApp, startFencedApp } from './support/fenced-app.js';
import { Gate } from './support/gate.js';

const PERSON = 'erika.mustermann@example.org';

@Entity('observed_row')
class Row {
  @PrimaryColumn('text') id!: string;
  @Column('text') value!: string;
}

@Injectable()
class Rows {
  constructor(@InjectRepository(Row) private readonly rows: Repository<Row>) {}

  @Leased('row:{0}')
  async under<T>(_id: string, work: () => Promise<T>): Promise<T> {
    return work();
  }

  @Leased('row:{0}', { waitMs: 0, onBusy: 'skip' })
  async skipping(_id: string, work: () => Promise<unknown>) {
    return work();
  }

  @FencedWrite()
  async save(id: string, value = 'value') {
    await this.rows.save({ id, value });
  }

  @FencedWrite({ operation: (id: string) => id })
  async once(id: string) {
    await this.save(id);
  }
}

describe('nestjs-fencing/otel', () => {
  let app: FencedApp;
  let rows: Rows;

  beforeAll(async () => {
    app = await startFencedApp({ entities: [Row], providers: [Rows] });
    rows = app.get(Rows);
  });
  afterAll(() => app.close());

  let runs = 0;
  const newId = () => `erika.mustermann-${Date.now()}-${runs++}`;
  /** A write that comes after the key was taken away. */
  const writeLate = (id: string) =>
    rows
      .under(id, async () => {
        await app.fencing.revoke(`row:${id}`);
        await rows.save(id);
      })
      .catch((error: { code: string }) => error.code);

  describe('scraped by Prometheus', () => {
    let port: number;
    let stop: () => Promise<void>;

    beforeEach(async () => {
      port = await freePort();
      stop = startMetrics(port);
    });
    afterEach(() => stop());

    /** The samples of a scrape over HTTP: series to value. */
    const scrape = async () => {
      const text = await get(`http://127.0.0.1:${port}/metrics`);
      const samples = text
        .split('\n')
        .filter((line) => line.startsWith('fencing_'))
        .map((line) => /^(\w+(?:\{.*\})?) (\S+)/.exec(line)!)
        .map(([, series, value]) => [series!, Number(value)] as const);
      return { text, samples: Object.fromEntries(samples) };
    };
    const labels = (rest = '') =>
      `{fencing_instance="default"${rest}otel_scope_name="nestjs-fencing"}`.replace(/"otel/, '",otel');
    const of = (name: string, outcome?: string, reason?: string) =>
      name +
      labels(
        `${outcome ? `,fencing_outcome="${outcome}"` : ''}${reason ? `,fencing_reason="${reason}"` : ''}`,
      );

    it('counts leases and times them in seconds', async () => {
      await rows.under(newId(), async () => undefined);
      const { samples, text } = await scrape();
      expect(samples).toMatchObject({
        [of('fencing_lease_wait_count', 'acquired')]: 1,
        [of('fencing_lease_hold_count', 'released')]: 1,
        [of('fencing_lease_held')]: 0,
      });
      expect(text).toContain('# UNIT fencing_lease_wait s\n# TYPE fencing_lease_wait histogram');
      expect(samples[of('fencing_lease_wait_sum', 'acquired')]).toBeLessThan(10);
      expect(samples[of('fencing_lease_wait_sum', 'acquired')]).toBeGreaterThan(0);
    });

    it('shows how many leases are held while they are', async () => {
      const [inside, out] = [new Gate(), new Gate()];
      const call = rows.under(newId(), async () => {
        inside.open();
        await out.wait();
      });
      await inside.wait();
      expect((await scrape()).samples[of('fencing_lease_held')]).toBe(1);
      out.open();
      await call;
      expect((await scrape()).samples[of('fencing_lease_held')]).toBe(0);
    });

    it('counts writes by their outcome: accepted, stale, refused, duplicate', async () => {
      const id = newId();
      await rows.under(id, async () => {
        await rows.once(`operation ${id}`);
        await rows.once(`operation ${id}`);
      });
      const late = newId();
      expect(await writeLate(late)).toBe('STALE_GENERATION');
      let left!: () => Promise<unknown>;
      const gate = new Gate();
      let leftOver!: Promise<unknown>;
      await rows.under(id, async () => {
        left = () => rows.save(id);
        leftOver = gate.wait().then(() => left());
      });
      gate.open();
      await expect(leftOver).rejects.toMatchObject({ code: 'LEASE_RELEASED' });
      expect((await scrape()).samples).toMatchObject({
        [of('fencing_writes_total', 'accepted')]: 1,
        [of('fencing_writes_total', 'duplicate')]: 1,
        [of('fencing_writes_total', 'stale')]: 1,
        [of('fencing_writes_total', 'refused', 'LEASE_RELEASED')]: 1,
        [of('fencing_write_duration_count', 'accepted')]: 1,
        [of('fencing_lease_hold_count', 'lost', 'stale')]: 1,
      });
    });

    it('counts callers that found their key taken, and those that gave up', async () => {
      const [inside, out] = [new Gate(), new Gate()];
      const id = newId();
      const call = rows.under(id, async () => {
        inside.open();
        await out.wait();
      });
      await inside.wait();
      expect(await rows.skipping(id, async () => 'never')).toBeUndefined();
      out.open();
      await call;
      expect((await scrape()).samples).toMatchObject({
        [of('fencing_lease_contentions_total')]: 1,
        [of('fencing_lease_wait_count', 'busy')]: 1,
      });
    });

    it('counts each event that has a metric, with the labels instance, outcome and reason and no other', async () => {
      const events = new FencingEmitter('other');
      const grant = { key: PERSON, owner: PERSON, generation: 1 };
      const facts = {
        'lease.contended': { key: PERSON, waitMs: 1 },
        'lease.busy': { key: PERSON, waitedMs: 250 },
        'lease.acquired': { ...grant, ttlMs: 1, waitedMs: 1, activated: true },
        'lease.renewed': { ...grant, marginMs: 2_000, uncertainMs: 500 },
        'lease.uncertain': { ...grant, remainingMs: 1 },
        'lease.lost': { ...grant, reason: 'expired', heldMs: 3, acceptedWrites: 0, uncertainMs: 1_500 },
        'lease.released': { ...grant, heldMs: 3, acceptedWrites: 0, uncertainMs: 0 },
        'write.accepted': { ...grant, keys: 1, tookMs: 1 },
        'write.stale': { ...grant, current: 2, where: PERSON },
        'write.refused': { ...grant, code: 'LEASE_LOST', where: PERSON },
        'write.unknown': { ...grant, tookMs: 1, where: PERSON },
        'operation.duplicate': { ...grant, operation: PERSON },
        'store.unavailable': { store: 'database', cause: new Error(PERSON) },
        'store.healed': { ...grant, behind: 1 },
        'audit.dropped': { count: 7, cause: 'too many' },
      } as const;
      for (const name of FENCING_EVENT_NAMES) events.emit(name, facts[name]);
      const { samples, text } = await scrape();
      const ofOther = (name: string, outcome?: string, reason?: string) =>
        of(name, outcome, reason).replace('"default"', '"other"');
      expect(samples).toMatchObject({
        [ofOther('fencing_lease_wait_sum', 'busy')]: 0.25,
        [ofOther('fencing_lease_renewal_margin_sum')]: 2,
        // Of the renewal and of the loss; the lease without a doubt is not among them.
        [ofOther('fencing_lease_uncertain_count')]: 2,
        [ofOther('fencing_lease_uncertain_sum')]: 2,
        [ofOther('fencing_lease_hold_count', 'lost', 'expired')]: 1,
        [ofOther('fencing_writes_total', 'unknown')]: 1,
        [ofOther('fencing_unavailable_total', undefined, 'database')]: 1,
        [ofOther('fencing_store_heals_total')]: 1,
        [ofOther('fencing_audit_dropped_total', undefined, 'too many')]: 7,
        // It was not seen to begin twice: a lease is subtracted once.
        [ofOther('fencing_lease_held')]: 0,
      });
      const names = [...text.matchAll(/^fencing_\w+\{(.*)\}/gm)].flatMap(([, list]) =>
        [...list!.matchAll(/(\w+)="/g)].map(([, name]) => name!),
      );
      expect([...new Set(names)].sort()).toEqual([
        'fencing_instance',
        'fencing_outcome',
        'fencing_reason',
        'le',
        'otel_scope_name',
      ]);
      expect(text).not.toContain('mustermann');
    });

    it('field report 40, I12: 50 000 leases of distinct keys with personal data are the same series as one', async () => {
      const many = await startFencedApp({ fence: false });
      const lease = (i: number) => many.fencing.run(`customer ${i} ${PERSON}`, {}, () => undefined);
      await lease(0);
      const series = async () => Object.keys((await scrape()).samples).sort();
      const one = await series();
      let next = 1;
      const lane = async () => {
        while (next < 50_000) await lease(next++);
      };
      await Promise.all(Array.from({ length: 500 }, lane));
      expect(await series()).toEqual(one);
      const { samples, text } = await scrape();
      expect(samples[of('fencing_lease_hold_count', 'released')]).toBe(50_000);
      expect(text).not.toContain('mustermann');
      await many.close();
    }, 180_000);

    it('field report 40: ten applications, one after the other, register nothing twice, and count in one place', async () => {
      for (let i = 0; i < 10; i++) {
        const own = await startFencedApp({ fence: false, leases: memoryLeases() });
        await own.fencing.run('key', {}, () => undefined);
        await own.close();
      }
      expect((await scrape()).samples[of('fencing_lease_hold_count', 'released')]).toBe(10);
    });

    it('set up twice counts once: the later set-up replaces the earlier', async () => {
      const secondPort = await freePort();
      const stopSecond = startMetrics(secondPort);
      await rows.under(newId(), async () => undefined);
      const name = of('fencing_lease_hold_count', 'released');
      expect((await scrape()).samples[name]).toBeUndefined();
      port = secondPort;
      expect((await scrape()).samples[name]).toBe(1);
      await stopSecond();
    });

    it('is what docs/observability.md shows, and the page lists every metric and no other', async () => {
      const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
      const page = read('docs/observability.md');
      const [, region] = /\/\/ #region .*\n([\s\S]*?)\n\/\/ #endregion/.exec(
        read('test/readme/observability.ts'),
      )!;
      expect(page).toContain('```ts\n' + region + '\n```');
      const made = [
        ...read('libs/fencing/src/otel/fencing-metrics.ts').matchAll(/meter\.create\w+\('([\w.]+)'/g),
      ].map(([, name]) => name);
      const listed = [
        ...page.matchAll(/^\| `(fencing\.[\w.]+)` \| (?:histogram|counter|up-down counter)/gm),
      ].map(([, name]) => name);
      expect(listed.sort()).toEqual(made.sort());
    });
  });

  describe('spans', () => {
    const exporter = new InMemorySpanExporter();
    const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });

    beforeAll(() => provider.register());
    afterAll(async () => {
      await provider.shutdown();
      trace.disable();
      context.disable();
    });
    beforeEach(() => {
      exporter.reset();
      instrumentFencing({ meterProvider: false });
    });
    afterEach(() => instrumentFencing({ meterProvider: false, tracerProvider: false }).stop());

    const spans = (name: string) => exporter.getFinishedSpans().filter((span) => span.name === name);
    const parentOf = (span: ReadableSpan) => span.parentSpanContext?.spanId;

    it('a leased call is a span, its fenced write is one inside it, and what they call is inside them', async () => {
      const id = newId();
      const inner = provider.getTracer('test');
      await rows.under(id, async () => {
        inner.startSpan('of the method').end();
        await rows.save(id);
      });
      const [lease] = spans('fencing.lease');
      const [write] = spans('fencing.write');
      const [own] = spans('of the method');
      expect(parentOf(write!)).toBe(lease!.spanContext().spanId);
      expect(parentOf(own!)).toBe(lease!.spanContext().spanId);
      expect(lease!.attributes).toEqual({
        'fencing.instance': 'default',
        'fencing.key': keyLabel(`row:${id}`),
        'fencing.generation': expect.any(Number),
        'fencing.outcome': 'released',
      });
      expect(lease!.events.map(({ name }) => name)).toEqual(['fencing.lease.granted']);
      expect(write!.attributes).toEqual({
        'fencing.instance': 'default',
        'fencing.key': keyLabel(`row:${id}`),
        'fencing.generation': lease!.attributes['fencing.generation'],
        'fencing.outcome': 'accepted',
        'code.function.name': 'Rows.save',
      });
    });

    it('a refused write names the generation that superseded it, and is linked to the call that took it in this process', async () => {
      const id = newId();
      const key = `row:${id}`;
      const other = await startFencedApp({ entities: [Row], providers: [Rows] });
      const call = rows.under(id, async () => {
        await app.redis.del(...(await app.redis.keys(`*:lease:${key}`)));
        await other.get(Rows).under(id, async () => undefined);
        await rows.save(id, PERSON);
      });
      await expect(call).rejects.toMatchObject({ code: 'STALE_GENERATION' });
      await other.close();
      const [write] = spans('fencing.write');
      const leases = spans('fencing.lease');
      const late = leases.find((span) => span.spanContext().spanId === parentOf(write!))!;
      const winner = leases.find((span) => span !== late)!;
      expect(write!.attributes).toMatchObject({
        'fencing.outcome': 'stale',
        'fencing.generation': late.attributes['fencing.generation'],
        'fencing.current_generation': winner.attributes['fencing.generation'],
        'error.type': 'STALE_GENERATION',
      });
      expect(write!.status).toEqual({ code: SpanStatusCode.ERROR });
      expect(write!.links).toMatchObject([
        { context: winner.spanContext(), attributes: { 'fencing.link': 'superseded_by' } },
      ]);
    });

    it('a refused write has no link where nobody knows the span: the key was revoked', async () => {
      expect(await writeLate(newId())).toBe('STALE_GENERATION');
      const [write] = spans('fencing.write');
      expect(write!.attributes['fencing.current_generation']).toBeGreaterThan(
        write!.attributes['fencing.generation'] as number,
      );
      expect(write!.links).toEqual([]);
    });

    it('a span processor that throws fails no call: what was committed is told so', async () => {
      const fail = () => {
        throw new Error('of the processor');
      };
      for (const broken of [{ onStart: fail }, { onEnd: fail }]) {
        const processor = { onStart: () => undefined, onEnd: () => undefined, ...broken };
        const spanProcessors = [
          { ...processor, forceFlush: async () => undefined, shutdown: async () => undefined },
        ];
        const tracerProvider = new NodeTracerProvider({ spanProcessors });
        instrumentFencing({ meterProvider: false, tracerProvider });
        const id = newId();
        await expect(rows.under(id, () => rows.save(id))).resolves.toBeUndefined();
        await expect(rows.under(id, () => Promise.reject(new Error('own')))).rejects.toThrow('own');
      }
    });

    it('a key that stays busy is no error', async () => {
      const id = newId();
      const other = await startFencedApp({ fence: false });
      // Taken and not run in: a call inside would be inside the span as well.
      await using _taken = await other.fencing.acquire(`row:${id}`);
      expect(await rows.skipping(id, async () => 'never')).toBeUndefined();
      _taken.release();
      await other.close();
      const [skipped] = spans('fencing.lease');
      expect(skipped!.attributes['fencing.outcome']).toBe('busy');
      expect(skipped!.status.code).toBe(SpanStatusCode.UNSET);
    });

    it("I12: nothing that a caller passed in is in a span; the key is, where keys: 'text' allows it", async () => {
      const id = newId();
      const fail = async () => {
        await rows.save(id, PERSON);
        throw new TypeError(`of ${PERSON}`);
      };
      await expect(rows.under(id, fail)).rejects.toThrow(TypeError);
      const told = () =>
        JSON.stringify(
          exporter
            .getFinishedSpans()
            .map(({ attributes, events, status, links }) => [attributes, events, status, links]),
        );
      expect(told()).not.toContain('mustermann');
      expect(spans('fencing.lease')[0]!.attributes).toMatchObject({
        'fencing.outcome': 'failed',
        'error.type': 'TypeError',
      });
      exporter.reset();
      instrumentFencing({ meterProvider: false, keys: 'text' });
      await expect(rows.under(id, fail)).rejects.toThrow(TypeError);
      expect(spans('fencing.lease')[0]!.attributes['fencing.key']).toBe(`row:${id}`);
      expect(told().replaceAll(JSON.stringify(`row:${id}`), '')).not.toContain('mustermann');
    });
  });

  it('computes nothing before it is called and after it was stopped', async () => {
    const events = new FencingEmitter();
    const heard = () => FENCING_EVENT_NAMES.filter((name) => events.hears(name));
    expect(heard()).toEqual([]);
    const instrumentation = instrumentFencing();
    expect(heard().length).toBeGreaterThan(10);
    expect(tracing.tracer).toBeDefined();
    instrumentation.stop();
    instrumentation.stop();
    expect(heard()).toEqual([]);
    expect(tracing.tracer).toBeUndefined();
  });

  it('refuses options that it does not know', () => {
    expect(() => instrumentFencing({ keys: 'all' as never })).toThrow(FencingConfigError);
    expect(() => instrumentFencing({ meter: 1 } as never)).toThrow(/no option "meter"/);
  });
});

function get(url: string): Promise<string> {
  return new Promise((resolve, reject) => {
    httpGet(url, { agent: false }, (response) => resolve(textOf(response))).on('error', reject);
  });
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}
