/** The sizes of the campaign: leases are short, so that every fault can outlast them. */
export const TTL_MS = 1_500;
export const WAIT_MS = 3_000;
export const STORE_TIMEOUT_MS = 700;
export const KEYS = ['alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta', 'eta', 'theta'].map(
  (name) => `account:${name}`,
);
export const START_BALANCE = 1_000;
export const WORKERS = 4;
/** Every worker sends the operation of a key's current slot, ms. */
export const SLOT_MS = 700;
/** How long everybody may take for everything once there are no more faults, ms. */
export const CALM_MS = 60_000;

/** An operation that was sent and whose fate nobody knows yet. */
export interface OpenOperation {
  readonly id: string;
  readonly key: string;
  readonly amount: number;
}

export interface WorkerSettings {
  readonly who: string;
  readonly index: number;
  readonly seed: number;
  readonly history: string;
  readonly redisUrl: string;
  readonly databaseUrl: string;
  /** A part of the fence was taken out: its own check at boot would notice. */
  readonly isControl: boolean;
}
