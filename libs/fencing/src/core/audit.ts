import type { Grant } from './lease-store.js';

/** A write that was refused, or whose outcome is unknown: what the audit keeps of it. */
export interface AuditNote extends Grant {
  readonly kind: 'stale' | 'unknown';
  /** The method that wrote. */
  readonly where: string;
  /** What the fence named instead, where it refused the write. */
  readonly current?: number;
  /** How long ago, ms. */
  readonly ageMs: number;
}

/** What the audit keeps of a key. */
export interface AuditEntry {
  /**
   * `stale`: a write was refused, since a newer grant had been activated. `unknown`: nobody knows whether a write was committed.
   * `revoked`: an operator took the key away.
   */
  readonly kind: 'stale' | 'unknown' | 'revoked';
  /** By the clock of the database. */
  readonly at: Date;
  readonly key: string;
  /** The grant that wrote, or that was revoked; `undefined` where the key was revoked and nobody had used it. */
  readonly generation: number | undefined;
  readonly owner: string | undefined;
  /** The generation that the fence named instead. */
  readonly supersededBy: number | undefined;
  /** When that one was activated; `undefined` where the fence had moved on before it could be read. */
  readonly supersededAt: Date | undefined;
  /** Who superseded it: of `stale` the owner of the newer grant, of `revoked` the operator. */
  readonly by: string | undefined;
  /** The operator's reason. */
  readonly reason: string | undefined;
  /** The method that wrote. */
  readonly where: string | undefined;
}
