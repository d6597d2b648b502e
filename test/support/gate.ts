import { inspect } from 'node:util';

/** Something a test opens by hand, to hold code at a known place. */
export class Gate {
  private release!: () => void;
  private readonly opened = new Promise<void>((resolve) => (this.release = resolve));

  isOpen = false;

  open(): void {
    this.isOpen = true;
    this.release();
  }

  /** Resolves once the gate is open; at once when it already is. */
  wait(): Promise<void> {
    return this.opened;
  }
}

/** Holds everyone who arrives until `parties` have arrived. */
export class Barrier {
  private readonly gate = new Gate();
  private arrived = 0;

  constructor(private readonly parties: number) {}

  arrive(): Promise<void> {
    if (++this.arrived >= this.parties) this.gate.open();
    return this.gate.wait();
  }
}

/**
 * Asks until the answer is truthy, and returns it. Instead of sleeping and hoping. A condition that throws is asked again;
 * the failure tells the last answer or error.
 */
export async function eventually<T>(
  condition: () => T | Promise<T>,
  { timeoutMs = 10_000, everyMs = 20 }: { timeoutMs?: number; everyMs?: number } = {},
): Promise<T> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    let last: string;
    let cause: unknown;
    try {
      const answer = await condition();
      if (answer) return answer;
      last = inspect(answer);
    } catch (error) {
      cause = error;
      last = inspect(error);
    }
    if (performance.now() > end)
      throw new Error(`not so within ${timeoutMs} ms; last seen: ${last}`, { cause });
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}
