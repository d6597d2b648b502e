import type { DataSource } from 'typeorm';
import type { Fence } from '../../core/fence.js';
import type { Query } from './postgres-lease-setup.js';
import type { LeaseSql } from './postgres-leases-sql.js';
import { quoted } from '../sql/names.js';
import { TypeOrmFence } from '../typeorm-fence.js';

/** A check that had no answer is made again after this; so is a request with an activation that failed, ms. */
const AGAIN_AFTER_MS = 10_000;

/** How grants are activated in the request that grants them. */
export interface JoinedActivation {
  /** The fence's function, as SQL. */
  readonly function: string;
  readonly durable: boolean;
}

/**
 * The fence that a lease store activates grants in by itself, once it is certain that both mean the same rows. Two things must be
 * true: the fence writes through the DataSource that the leases are kept in, so that connections of both lead to the same server,
 * now and after a failover; and the sessions of both find the same fence under its name, so that no search_path is between them.
 */
export class JoinedFence {
  private fence: TypeOrmFence | undefined;
  private refused = false;
  private certain: JoinedActivation | undefined;
  private lookAt = 0;
  private restsUntil = 0;

  /** @param dataSource of the leases; none where they have a URL of their own, which may lead somewhere else one day */
  constructor(
    private readonly dataSource: DataSource | undefined,
    private readonly sql: LeaseSql,
    private readonly query: Query,
  ) {}

  join(fence: Fence): void {
    // A second fence: grants of one of them would be activated in the other.
    if (this.fence && this.fence !== fence) this.refused = true;
    if (fence instanceof TypeOrmFence && fence.activation.dataSource === this.dataSource) this.fence = fence;
    else this.refused = true;
  }

  /** How to activate, where that is certain; where nobody has looked yet, it is looked at in the background. */
  get activation(): JoinedActivation | undefined {
    if (this.refused || !this.fence) return undefined;
    const now = performance.now();
    if (!this.certain && now >= this.lookAt) this.look().catch(() => undefined);
    return now < this.restsUntil ? undefined : this.certain;
  }

  /** A request with an activation failed: a disk or a replica that is waited for must not keep the next steps waiting as well. */
  rest(): void {
    this.restsUntil = performance.now() + AGAIN_AFTER_MS;
  }

  /** Asks the sessions of both. */
  async look(): Promise<void> {
    const { fence } = this;
    if (!fence || this.refused || this.certain) return;
    this.lookAt = performance.now() + AGAIN_AFTER_MS;
    const { dataSource, schema, durable } = fence.activation;
    const name = (of: string) => (schema === undefined ? of : `${quoted(schema)}.${of}`);
    const text = this.sql.findFence;
    const names = [
      `${name('fencing_activate')}(text, bigint, text, integer, boolean)`,
      name('fencing_fence'),
    ];
    const [[mine], [its]] = await Promise.all([
      this.query(text, names),
      dataSource.query<Record<string, unknown>[]>(text, names),
    ]);
    const found = JSON.stringify(mine);
    if (found === JSON.stringify(its) && !found.includes('null'))
      this.certain = { function: name('fencing_activate'), durable };
    else this.refused = true;
  }
}
