import type { FencingEvent } from 'nestjs-fencing';

/*
 * What the workers of the exercise send, and what is known of a run.
 */

/** The same rebuild, published under a lock alone and by a fenced write. */
export type Side = 'lock' | 'fence';
export type Worker = 'A' | 'B';

export interface Figures {
  readonly entries: number;
  readonly totalCents: string;
}

/** What a worker is told. */
export type Order = { readonly order: 'rebuild'; readonly waits: boolean } | { readonly order: 'write' };

/** What a worker tells. */
export type Told =
  | { readonly told: 'ready' }
  | { readonly told: 'granted'; readonly side: Side; readonly generation: number }
  | { readonly told: 'read' | 'wrote'; readonly side: Side; readonly figures: Figures }
  | { readonly told: 'refused'; readonly side: Side; readonly code: string }
  | { readonly told: 'ended'; readonly side: Side }
  | { readonly told: 'event'; readonly event: FencingEvent };

export interface Step {
  /** Since the run began, ms. */
  readonly atMs: number;
  readonly kind:
    'granted' | 'read' | 'wrote' | 'refused' | 'ended' | 'stopped' | 'added' | 'resumed' | 'found';
  /** Whose step it is; that of the exercise itself without one. */
  readonly who?: Worker;
  /** Both sides without one. */
  readonly side?: Side;
  readonly generation?: number;
  readonly figures?: Figures;
  readonly code?: string;
}

export interface RunRecord {
  readonly state: 'idle' | 'starting' | 'running' | 'done' | 'failed';
  readonly steps: readonly Step[];
  /** How long it has taken so far. */
  readonly atMs: number;
  readonly ttlMs: number;
  readonly problem?: string;
}

/** How long a lease of the exercise lasts without a renewal, ms. */
export const TTL_MS = 1_500;

/** The customer whose report is rebuilt: one for each side. */
export const customerOf = (side: Side) => `exercise-with-${side}`;
