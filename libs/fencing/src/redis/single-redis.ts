import type { Examination } from '../core/diagnosis.js';
import type { StoreFinding } from '../core/lease-store.js';
import { checkServer } from './check-server.js';
import { diagnoseRedis } from './diagnose-redis.js';
import type { Hearing, HintSource } from './hint-source.js';
import type { RedisBackend } from './redis-backend.js';
import type { RedisClient } from './redis-client.js';
import { SharedConnection } from './shared-connection.js';
import { STEPS_SCRIPT, StepSender } from './step-sender.js';

/** One Redis, or the one that Sentinel names. */
export class SingleRedis implements RedisBackend {
  private readonly sender: StepSender;

  constructor(private readonly client: RedisClient) {
    this.sender = new StepSender(client);
  }

  senderOf(): StepSender {
    return this.sender;
  }

  hints(hearing: Hearing): HintSource {
    return new SharedConnection(this.client, hearing);
  }

  read(name: string): Promise<[string | null, number]> {
    return Promise.all([this.client.get(name), this.client.pttl(name)]);
  }

  check(): Promise<StoreFinding[]> {
    return checkServer(this.client, {
      version: [6, 2],
      because: 'LPOS in scripts',
      isCluster: false,
      script: STEPS_SCRIPT.text,
    });
  }

  diagnose(): Promise<Examination> {
    return diagnoseRedis(this.client);
  }
}
