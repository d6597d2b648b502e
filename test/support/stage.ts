import { expect } from '@jest/globals';
import { type Lease, LeaseBusyError } from 'nestjs-fencing';
import { Gate } from './gate.js';

/** Where leased bodies of a test stand while the test looks: each says that it is in, and waits to be let out. */
export class Stage {
  /** The generations of the bodies that came in, in order. */
  readonly generations: (number | undefined)[] = [];
  private inside = 0;
  private entered = new Gate();
  private exit = new Gate();

  /** Called by a body. */
  async enter(lease: Lease | undefined): Promise<void> {
    this.generations.push(lease?.generation);
    this.inside += 1;
    expect(this.inside).toBe(1);
    this.entered.open();
    await this.exit.wait();
    this.inside -= 1;
  }

  /**
   * Proves that `call` runs its body under a lease: while one is inside another is kept out, and each has a generation of its
   * own, the later the higher. The method must not wait (`waitMs: 0`).
   * @param keptOut how a call ends that is kept out
   */
  async provesExclusion(
    call: () => Promise<unknown>,
    keptOut: (second: Promise<unknown>) => Promise<unknown> = (second) =>
      expect(second).rejects.toThrow(LeaseBusyError),
  ): Promise<void> {
    this.reset();
    const first = call();
    await Promise.race([this.entered.wait(), first]);
    expect(this.generations).toHaveLength(1);
    await keptOut(call());
    expect(this.generations).toHaveLength(1);
    this.exit.open();
    await first;
    await call();
    const [one, two] = this.generations as [number, number];
    expect(this.generations).toHaveLength(2);
    expect(Number.isSafeInteger(one) && one > 0).toBe(true);
    expect(two).toBeGreaterThan(one);
  }

  private reset(): void {
    this.generations.length = 0;
    this.inside = 0;
    this.entered = new Gate();
    this.exit = new Gate();
  }
}
