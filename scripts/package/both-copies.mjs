import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { lib } from './package.mjs';

/**
 * Loads the ES module and the CommonJS copy into this process, as test runners and bundlers may, and crosses them.
 * @returns {Promise<string[]>}
 */
export async function checkBothCopies() {
  try {
    await cross();
    return [];
  } catch (error) {
    return [error instanceof Error ? String(error.stack) : String(error)];
  }
}

async function cross() {
  const require = createRequire(import.meta.url);
  const load = async (/** @type {string} */ name) => ({
    esm: await import(pathToFileURL(path.join(lib, 'dist', 'esm', name)).href),
    cjs: require(path.join(lib, 'dist', 'cjs', name)),
  });
  const { esm, cjs } = await load('index.js');
  const testing = await load('testing/index.js');
  assert.notEqual(esm.FencingModule, cjs.FencingModule, 'both are one copy: this proves nothing');

  for (const [one, other] of [
    [esm, cjs],
    [cjs, esm],
  ]) {
    const busy = new one.LeaseBusyError('k', 1, 1);
    assert.ok(busy instanceof other.LeaseBusyError && busy instanceof other.FencingError, 'errors by type');
    assert.ok(!(busy instanceof other.LeaseLostError), 'errors by type');
    assert.equal(one.fencingServiceToken(), other.fencingServiceToken(), 'tokens');
  }

  class Service {
    /** @param {unknown} [lease] */
    async esmLeased(lease) {
      return lease;
    }
    /** @param {unknown} [lease] */
    async cjsLeased(lease) {
      return lease;
    }
    /** @param {unknown} [lease] */
    async esmWrite(lease) {
      return lease;
    }
  }
  decorate(Service, 'esmLeased', esm.Leased('k', { waitMs: 0 }), esm.CurrentLease());
  decorate(Service, 'cjsLeased', cjs.Leased('k', { waitMs: 0 }), cjs.CurrentLease());
  decorate(Service, 'esmWrite', esm.FencedWrite(), esm.CurrentLease());

  class AppModule {}
  Module({ imports: [testing.cjs.FencingTestingModule.forRoot()], providers: [Service] })(AppModule);
  const app = await NestFactory.createApplicationContext(AppModule, { logger: ['error', 'warn'] });
  try {
    const service = app.get(Service);
    const fencing = app.get(esm.fencingServiceToken());
    await fencing.run('k', { waitMs: 0 }, async (/** @type {{ generation: number }} */ lease) => {
      const seen = [await service.esmLeased(), await service.cjsLeased(), fencing.current()];
      for (const other of seen)
        assert.equal(other, lease, 'a lease that one copy took is joined by the other');
      assert.equal(
        await service.esmWrite(),
        lease,
        'a fenced write of one copy under the lease of the other',
      );
      const headers = [esm, cjs].map((copy) => copy.fencingHeaders());
      for (const sent of headers) assert.equal(sent['Fencing-Generation'], String(lease.generation));
    });
    await assert.rejects(
      () => service.esmWrite(),
      (error) => error instanceof esm.NoLeaseError && error instanceof cjs.NoLeaseError,
    );
    assert.deepEqual(esm.keyMap(), cjs.keyMap(), 'the key map');
    assert.equal(esm.keyMap().length, 2);
  } finally {
    await app.close();
  }
}

/** @param {Function} target @param {string} name @param {Function} method @param {Function} [parameter] */
function decorate(target, name, method, parameter) {
  parameter?.(target.prototype, name, 0);
  const descriptor = Object.getOwnPropertyDescriptor(target.prototype, name);
  method(target.prototype, name, descriptor);
  Object.defineProperty(target.prototype, name, /** @type {PropertyDescriptor} */ (descriptor));
}
