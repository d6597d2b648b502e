/*
 * What a drill saw, as data: printed as a table, written as JSON, or drawn on a page.
 */

/** A and B are worker processes; the others are what happens to them. */
export type Actor = 'A' | 'B' | 'drill' | 'network' | 'Redis' | 'Postgres';

/** The four things that are easily taken for one another. */
export interface Facts {
  /** Names an effect, whoever sends it and however often. */
  readonly operation?: string;
  /** Names one grant of the lease. */
  readonly owner?: string;
  /** The fencing token of that grant. */
  readonly generation?: number;
  /** What the database accepted. */
  readonly accepted?: Published | Booked;
  /** The code of the error that the writer got instead. */
  readonly refused?: string;
  /** What a newer owner had published is gone; `accepted` stands in its place. */
  readonly overwritten?: Published;
}

export interface Step extends Facts {
  /** Since the drill began, ms. */
  readonly atMs: number;
  readonly who: Actor;
  readonly what: string;
}

/** Something the drill promises, and whether it was so. */
export interface Claim {
  readonly text: string;
  readonly holds: boolean;
  /** What was seen. */
  readonly saw?: string;
}

export interface SceneRecord {
  readonly id: string;
  readonly title: string;
  readonly steps: readonly Step[];
  readonly claims: readonly Claim[];
}

export interface DrillRecord {
  readonly drill: 'nestjs-fencing';
  readonly fence: 'on' | 'off';
  readonly passed: number;
  readonly failed: number;
  readonly durationMs: number;
  readonly scenarios: readonly SceneRecord[];
}

/** A report as it was published: the result of the operation that published it. */
export interface Published {
  readonly entries: number;
  readonly totalCents: string;
}

/** The result of an operation that books an entry. */
export interface Booked {
  readonly entryId: string;
  readonly amountCents: number;
}

/** Hears of everything as it happens. */
export interface DrillListener {
  began(fence: DrillRecord['fence']): void;
  sceneBegan(scene: SceneRecord): void;
  stepDone(step: Step): void;
  sceneEnded(scene: SceneRecord): void;
  ended(drill: DrillRecord): void;
}
