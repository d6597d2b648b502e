import type {
  AcquireAnswer,
  AcquireRequest,
  ActivationAnswer,
  ActivationRequest,
  Fence,
  FenceSource,
  LeaseStore,
  ReleaseAnswer,
  ReleaseRequest,
  RenewRequest,
} from 'nestjs-fencing';
import { type HistoryFile, now } from './history.js';
import type { Random } from './random.js';

/** How often a request that was answered is sent once more, as a retry after a lost reply would be. */
const DOUBLED = 0.04;

/** The lease store, with every request and answer in the history, and some requests doubled. */
export function recordedStore(store: LeaseStore, history: HistoryFile, random: Random): LeaseStore {
  const acquire = async (request: AcquireRequest): Promise<AcquireAnswer> => {
    const answer = await acquireOnce(request);
    if (answer.granted && random.chance(DOUBLED)) await acquireOnce(request).catch(() => undefined);
    return answer;
  };
  const acquireOnce = async (request: AcquireRequest): Promise<AcquireAnswer> => {
    const { key, owner, floor } = request;
    const asked = { e: 'acquire', sent: now(), key, owner, floor } as const;
    try {
      const answer = await store.acquire(request);
      if (answer.granted) history.note({ ...asked, generation: answer.generation });
      else history.note({ ...asked, remainingMs: answer.remainingMs });
      return answer;
    } catch (error) {
      history.note({ ...asked, failed: String((error as Error).message) });
      throw error;
    }
  };
  const renew = async (requests: readonly RenewRequest[]): Promise<boolean[]> => {
    const answers = await renewOnce(requests);
    if (random.chance(DOUBLED)) await renewOnce(requests, true).catch(() => undefined);
    return answers;
  };
  const renewOnce = async (requests: readonly RenewRequest[], again?: true): Promise<boolean[]> => {
    const sent = now();
    try {
      const answers = await store.renew(requests);
      requests.forEach(({ key, owner }, i) =>
        history.note({ e: 'renew', sent, key, owner, answer: answers[i], again }),
      );
      return answers;
    } catch (error) {
      const failed = String((error as Error).message);
      for (const { key, owner } of requests) history.note({ e: 'renew', sent, key, owner, failed, again });
      throw error;
    }
  };
  const release = async (request: ReleaseRequest): Promise<ReleaseAnswer> => {
    const { key, owner, successor, holdMs } = request;
    history.note({ e: 'releasing', key, owner, hold: holdMs !== undefined });
    const sent = now();
    const answer = await store.release(request);
    const next = answer.successor;
    history.note({
      e: 'released',
      sent,
      key,
      owner,
      held: answer.held,
      successor:
        next && 'generation' in next
          ? { key, owner: successor!.owner, generation: next.generation }
          : undefined,
    });
    if (random.chance(DOUBLED)) {
      const again = await store.release({ key, owner }).catch(() => undefined);
      if (again) history.note({ e: 'released', sent, key, owner, held: again.held });
    }
    return answer;
  };
  return replaced(store, { acquire, renew, release });
}

/** A fence with every activation in the history, and some of them doubled; `unchecked`: without its check at boot. */
export function recordedFence(
  source: FenceSource,
  history: HistoryFile,
  random: Random,
  unchecked: boolean,
): FenceSource {
  const record = (fence: Fence): Fence => {
    const once = async (request: ActivationRequest): Promise<ActivationAnswer> => {
      const { key, owner, generation } = request;
      history.note({ e: 'activating', key, owner, generation });
      const sent = now();
      const answer = await fence.activate(request);
      const ahead = answer.activated ? undefined : answer.generation;
      history.note({ e: 'activated', sent, key, owner, generation, ahead });
      return answer;
    };
    const activate = async (request: ActivationRequest): Promise<ActivationAnswer> => {
      const answer = await once(request);
      if (random.chance(DOUBLED)) await once(request).catch(() => undefined);
      return answer;
    };
    return replaced(fence, { activate, ...(unchecked && { check: async () => undefined }) });
  };
  return { ...source, create: (provider) => record(source.create(provider)) };
}

/** `target` with some of its methods replaced for whoever calls them from outside. */
function replaced<T extends object>(target: T, methods: Partial<T>): T {
  return new Proxy(target, {
    get(_, name) {
      const method = (methods as Record<string | symbol, unknown>)[name];
      if (method) return method;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    },
  });
}
