/**
 * The part of an ioredis client (5 or 6, `Redis`) that the lease store uses. Structural, so that the package does not
 * depend on one version's types.
 */
export interface RedisClient {
  readonly status: string;
  readonly options?: { readonly sentinels?: unknown; readonly keyPrefix?: string };
  evalsha(sha: string, keyCount: number, ...args: (string | number)[]): Promise<unknown>;
  eval(script: string, keyCount: number, ...args: (string | number)[]): Promise<unknown>;
  get(key: string): Promise<string | null>;
  pttl(key: string): Promise<number>;
  call(command: string, ...args: string[]): Promise<unknown>;
  duplicate(override?: object): RedisSubscriber;
  /** `true` connects anew at once. */
  disconnect(reconnect?: boolean): void;
  quit(): Promise<unknown>;
}

/** A connection in subscriber mode. */
export interface RedisSubscriber {
  subscribe(channel: string): Promise<unknown>;
  on(event: 'message', listener: (channel: string, message: string) => void): unknown;
  on(event: 'ready', listener: () => void): unknown;
  on(event: 'error', listener: (error: Error) => void): unknown;
  disconnect(): void;
}
