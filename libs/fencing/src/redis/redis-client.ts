/**
 * The part of an ioredis client (5 or 6, `Redis`) that the lease store uses. Structural, so that the package does not
 * depend on one version's types. `| undefined`: ioredis has it, and with `exactOptionalPropertyTypes` it does not fit otherwise.
 */
export interface RedisClient extends ScriptClient {
  readonly status: string;
  readonly options?: { readonly sentinels?: unknown; readonly keyPrefix?: string | undefined };
  get(key: string): Promise<string | null>;
  pttl(key: string): Promise<number>;
  call(command: string, ...args: string[]): Promise<unknown>;
  duplicate(override?: object): RedisSubscriber;
  /** `true` connects anew at once. */
  disconnect(reconnect?: boolean): void;
  quit(): Promise<unknown>;
}

/** The part of an ioredis `Cluster` that the lease store uses. */
export interface RedisClusterClient extends ScriptClient {
  readonly isCluster: boolean;
  readonly status: string;
  readonly options?: { readonly keyPrefix?: string | undefined; readonly natMap?: unknown };
  call(command: string, ...args: string[]): Promise<unknown>;
  /** The nodes that are known now; those it was made with, until it has connected. */
  nodes(role: 'master'): RedisClusterNode[];
  /** Asks the nodes who serves which slot. */
  refreshSlotsCache(callback?: () => void): void;
  disconnect(reconnect?: boolean): void;
  quit(): Promise<unknown>;
}

/** A node of a cluster: a client of its own. */
export interface RedisClusterNode {
  readonly options: { readonly host?: string | undefined; readonly port?: number | undefined };
  call(command: string, ...args: string[]): Promise<unknown>;
  duplicate(override?: object): RedisSubscriber;
  /** Old clients have none. */
  ssubscribe?(channel: string): Promise<unknown>;
}

/** What sends scripts. */
export interface ScriptClient {
  evalsha(sha: string, keyCount: number, ...args: (string | number)[]): Promise<unknown>;
  eval(script: string, keyCount: number, ...args: (string | number)[]): Promise<unknown>;
}

/** A connection in subscriber mode. */
export interface RedisSubscriber {
  readonly options: { readonly host?: string | undefined; readonly port?: number | undefined };
  /** Until it is in subscriber mode. */
  call(command: string, ...args: string[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  /** Old clients have none. */
  ssubscribe?(channel: string): Promise<unknown>;
  on(event: 'message', listener: (channel: string, message: string) => void): unknown;
  on(event: 'ready', listener: () => void): unknown;
  on(event: 'error', listener: (error: Error) => void): unknown;
  /** Others: `smessage`, `moved`, `end`. */
  on(event: string, listener: (...args: string[]) => void): unknown;
  disconnect(): void;
}

export function isCluster(client: unknown): client is RedisClusterClient {
  return (client as Partial<RedisClusterClient> | undefined)?.isCluster === true;
}
