/** Whether a channel is heard. */
export interface Subscription {
  readonly isLive: boolean;
  /** Resolves once it is heard, or cannot be. */
  readonly live: Promise<void>;
}

/** Where hints come from: one channel for each bucket of keys. */
export interface HintSource {
  /** Listens to a channel from now on. */
  subscribe(channel: string): Subscription;
  /** The server of a channel is silent: what listens there may be dead too. */
  doubt(channel: string): void;
  close(): void;
}

/** Who hears them. */
export interface Hearing {
  hear(message: string): void;
  /** Hints may have been missed: on one channel, or on any. */
  missed(channel?: string): void;
  /** Whether somebody still waits for hints on the channel. */
  isWanted(channel: string): boolean;
}
