import { Logger } from '@nestjs/common';
import { redisLeases } from 'nestjs-fencing/redis';
import { postgresLeases } from 'nestjs-fencing/typeorm';

/** Leases in Redis where there is one, else beside the fence. */
export function leasesFor(redisUrl: string | undefined) {
  if (redisUrl) return redisLeases({ url: redisUrl });
  new Logger('Report publisher').log('No REDIS_URL: leases are kept in PostgreSQL, beside the fence.');
  return postgresLeases();
}
