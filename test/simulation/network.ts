import type { VirtualProcess, World } from './world.js';

/** How bad the network is: probabilities per message, and how long messages take. */
export interface Weather {
  readonly lostRequest: number;
  readonly lostReply: number;
  /** The request is executed twice, the second time whenever it pleases. */
  readonly doubled: number;
  /** The client is told of a broken connection; whether the request was executed is anybody's guess. */
  readonly broken: number;
  /** Most messages take up to this, ms. */
  readonly delayMs: number;
  /** A message may be this late, ms, with this probability. */
  readonly late: { readonly chance: number; readonly ms: number };
}

export const FAIR_WEATHER: Weather = {
  lostRequest: 0,
  lostReply: 0,
  doubled: 0,
  broken: 0,
  delayMs: 2,
  late: { chance: 0, ms: 0 },
};

/** A server that can be cut off from a process, or be frozen: it does nothing, and everything that was sent to it waits. */
export class Host {
  private frozenUntil = 0;
  private readonly cutOff = new Map<VirtualProcess, number>();

  constructor(readonly world: World) {}

  freeze(ms: number): void {
    this.frozenUntil = Math.max(this.frozenUntil, this.world.now + ms);
  }

  cut(process: VirtualProcess, ms: number): void {
    this.cutOff.set(process, this.world.now + ms);
  }

  heal(): void {
    this.frozenUntil = 0;
    this.cutOff.clear();
  }

  isCutOff(process: VirtualProcess): boolean {
    return (this.cutOff.get(process) ?? 0) > this.world.now;
  }

  /** Runs `act` at the server in `ms`, or when it thaws. */
  arrive(ms: number, act: () => void): void {
    this.world.after(ms, () => {
      if (this.frozenUntil > this.world.now) this.arrive(this.frozenUntil - this.world.now, act);
      else act();
    });
  }
}

/** Requests and replies over a network that loses, delays, reorders and doubles them. */
export class Network {
  weather: Weather = FAIR_WEATHER;

  constructor(private readonly world: World) {}

  delay(): number {
    const { random } = this.world;
    const { delayMs, late } = this.weather;
    return random.chance(late.chance) ? random.between(0, late.ms) : random.between(0, delayMs);
  }

  /** Sends a request that may be executed zero, one or two times, and may never be answered. */
  ask<T>(process: VirtualProcess, host: Host, execute: () => Promise<T>, broken: () => Error): Promise<T> {
    const { random } = this.world;
    const { lostRequest, lostReply, doubled, broken: breaks } = this.weather;
    return new Promise<T>((resolve, reject) => {
      const cut = host.isCutOff(process);
      const isBroken = random.chance(breaks);
      const toProcess = (act: () => void) => this.world.after(this.delay(), act, process);
      if (isBroken || (cut && random.chance(0.5))) toProcess(() => reject(broken()));
      const answer = (): void => {
        execute().then(
          (value) => {
            if (!isBroken && !host.isCutOff(process) && !random.chance(lostReply))
              toProcess(() => resolve(value));
          },
          (error: Error) => toProcess(() => reject(error)),
        );
      };
      // A cut network loses what is sent, or holds it back until it is mended.
      const isLost = random.chance(cut ? 0.7 : lostRequest) || (isBroken && random.chance(0.5));
      if (!isLost) host.arrive(cut ? this.delay() + random.between(0, 2_000) : this.delay(), answer);
      if (random.chance(doubled)) {
        host.arrive(this.delay() + random.between(0, 1_000), () => void execute().catch(() => undefined));
      }
    });
  }
}
