import type { Actor, Claim, DrillListener, DrillRecord, Facts, SceneRecord, Step } from './events.js';

/** What a scenario writes down: its steps, and what it claims of them. */
export class Scene implements SceneRecord {
  readonly steps: Step[] = [];
  readonly claims: Claim[] = [];

  constructor(
    readonly id: string,
    readonly title: string,
    private readonly elapsedMs: () => number,
    private readonly listener: DrillListener,
  ) {}

  step(who: Actor, what: string, facts: Facts = {}): void {
    const step = { atMs: Math.round(this.elapsedMs()), who, what, ...facts };
    this.steps.push(step);
    this.listener.stepDone(step);
  }

  /** @param saw what was seen: it is printed either way, so that a PASS can be judged too */
  claim(text: string, holds: boolean, saw?: string | number): void {
    this.claims.push({ text, holds, saw: saw === undefined ? undefined : String(saw) });
  }
}

export function recordOf(
  scenes: readonly Scene[],
  fence: DrillRecord['fence'],
  durationMs: number,
): DrillRecord {
  const claims = scenes.flatMap((scene) => scene.claims);
  const passed = claims.filter(({ holds }) => holds).length;
  return {
    drill: 'nestjs-fencing',
    fence,
    passed,
    failed: claims.length - passed,
    durationMs: Math.round(durationMs),
    scenarios: scenes.map(({ id, title, steps, claims }) => ({ id, title, steps, claims })),
  };
}
