import { recordOf, Scene } from './claims.js';
import type { DrillListener, DrillRecord } from './events.js';
import { ignoredCancellation } from './scenarios/ignored-cancellation.js';
import { lateRelease } from './scenarios/late-release.js';
import { lostRenewalReply } from './scenarios/lost-renewal-reply.js';
import { operationTwice } from './scenarios/operation-twice.js';
import { redisLost } from './scenarios/redis-lost.js';
import type { Scenario } from './scenarios/scenario.js';
import { stoppedWorker } from './scenarios/stopped-worker.js';
import { type DrillServers, Stage } from './stage.js';
import { Table } from './table.js';

const SCENARIOS: readonly Scenario[] = [
  ...stoppedWorker,
  lateRelease,
  lostRenewalReply,
  ignoredCancellation,
  redisLost,
  operationTwice,
];

export interface DrillOptions {
  /** One JSON document instead of the table. */
  readonly json: boolean;
  /** Runs the same with the guard off: then the drill must fail. */
  readonly withoutFence: boolean;
}

/** Runs the whole drill. Answers its exit code. */
export async function main(servers: DrillServers, { json, withoutFence }: DrillOptions): Promise<number> {
  const print = (line: string) => process.stdout.write(`${line}\n`);
  const listener = json ? jsonDocument(print) : new Table(print, coloured());
  const record = await run(servers, withoutFence ? 'off' : 'on', listener);
  return record.failed > 0 ? 1 : 0;
}

async function run(
  servers: DrillServers,
  fence: DrillRecord['fence'],
  listener: DrillListener,
): Promise<DrillRecord> {
  const began = performance.now();
  const elapsedMs = () => performance.now() - began;
  const scenes: Scene[] = [];
  listener.began(fence);
  const stage = await Stage.open(servers, fence);
  try {
    for (const { id, title, play } of SCENARIOS) {
      const scene = new Scene(id, title, elapsedMs, listener);
      scenes.push(scene);
      listener.sceneBegan(scene);
      try {
        await play(stage, scene);
      } catch (error) {
        scene.claim('the scenario runs to its end', false, String((error as Error).message));
        await stage.clear();
      }
      listener.sceneEnded(scene);
    }
  } finally {
    await stage.close();
  }
  const record = recordOf(scenes, fence, elapsedMs());
  listener.ended(record);
  return record;
}

function jsonDocument(print: (text: string) => void): DrillListener {
  const nothing = () => undefined;
  return {
    began: nothing,
    sceneBegan: nothing,
    stepDone: nothing,
    sceneEnded: nothing,
    ended: (record) => print(JSON.stringify(record, undefined, 2)),
  };
}

function coloured(): boolean {
  return process.stdout.isTTY === true && !process.env.NO_COLOR;
}
