import { Cluster, type ClusterOptions } from 'ioredis';
import { freePort } from '../../scripts/services.mjs';
import { BUCKETS, bucketOf } from '../../libs/fencing/src/core/buckets.js';
import { slotOf } from '../../libs/fencing/src/redis/cluster/cluster-slots.js';
import { eventually } from './gate.js';
import { RedisServer } from './redis-server.js';

/** Redis gives an attempt of CLUSTER FAILOVER up after 5 s. */
const FAILOVER_GIVEN_UP_MS = 6_000;
const NO_ELECTION_MS = 60_000;
const SLOTS = 16_384;

/** A line of CLUSTER NODES. */
interface NodeView {
  readonly id: string;
  readonly port: number;
  readonly isMaster: boolean;
  readonly isUp: boolean;
  readonly masterId: string;
  readonly slots: readonly (readonly [number, number])[];
}

/**
 * Three masters and a replica of each, on free ports of this machine. A replica takes over when its master was silent for
 * `nodeTimeoutMs`, and then about a second. The slots of a dead master do not stop the other masters.
 */
export class ClusterOfServers {
  private readonly moves: { slot: number; servers: RedisServer[] }[] = [];
  private leading = new Set<RedisServer>();
  private readonly electedAt = new Map<RedisServer, number>();

  private constructor(
    readonly servers: readonly RedisServer[],
    private readonly nodeTimeoutMs: number,
  ) {}

  static async start({ nodeTimeoutMs = 1_500, args = [] as string[] } = {}): Promise<ClusterOfServers> {
    const started: RedisServer[] = [];
    const cluster = new ClusterOfServers(started, nodeTimeoutMs);
    try {
      for (let i = 0; i < 6; i++) {
        const settings = {
          '--cluster-enabled': 'yes',
          '--cluster-port': String(await freePort()),
          '--cluster-node-timeout': String(nodeTimeoutMs),
          '--cluster-require-full-coverage': 'no',
          '--cluster-replica-validity-factor': '0',
          '--cluster-allow-replica-migration': 'no',
          '--repl-diskless-sync-delay': '0',
        };
        started.push(await RedisServer.start([...Object.entries(settings).flat(), ...args]));
        await started[i]!.command('CLUSTER', 'SET-CONFIG-EPOCH', i + 1);
      }
      await cluster.form();
    } catch (error) {
      await cluster.stop();
      throw error;
    }
    return cluster;
  }

  /** A client of its own, that hears of trouble by its calls only. */
  connect(options: ClusterOptions = {}): Cluster {
    const client = new Cluster(this.addresses, options);
    client.on('error', () => undefined);
    return client;
  }

  get addresses(): { host: string; port: number }[] {
    return this.servers.map(({ port }) => ({ host: '127.0.0.1', port }));
  }

  /** Those that serve slots now, as a node sees it that answers. */
  async masters(): Promise<RedisServer[]> {
    return (await this.view()).filter(servesSlots).map(({ port }) => this.at(port));
  }

  async masterOfSlot(slot: number): Promise<RedisServer> {
    const node = (await this.view()).find((one) => serves(one, slot));
    if (!node) throw new Error(`nobody serves slot ${slot}`);
    return this.at(node.port);
  }

  /** The master of the bucket of a lease key. */
  masterOf(key: string): Promise<RedisServer> {
    return this.masterOfSlot(slotOfKey(key));
  }

  /** The replica of a master. */
  async replicaOf(master: RedisServer): Promise<RedisServer> {
    const id = await idOf(master);
    const isReplica = ({ masterId, isUp }: NodeView) => masterId === id && isUp;
    const port = await eventually(async () => (await this.view()).find(isReplica)?.port);
    return this.at(port!);
  }

  /** Lease keys, each served by another master, in the order of `masters()`. */
  async keysOnAllMasters(): Promise<string[]> {
    const masters = (await this.view()).filter(servesSlots);
    return masters.map((master) => {
      for (let i = 0; ; i++) if (serves(master, slotOfKey(`report:${i}`))) return `report:${i}`;
    });
  }

  /**
   * Resolves once every slot is served, all nodes that answer agree about that and about each other, and every replica can
   * be elected. One that won an election and was demoted takes its old votes for new ones until the old election is out of
   * date (redis/redis#8752): it would lead with an epoch that nobody accepts, and the slots would stay without a master.
   */
  async settled(): Promise<void> {
    await eventually(
      async () => {
        const views = await Promise.all(this.servers.map((server) => this.viewOf(server)));
        const known = views.filter((view) => view !== undefined);
        const owners = known.map((view) =>
          JSON.stringify(view.filter(servesSlots).map(({ port, slots }) => [port, slots])),
        );
        const sorted = owners.map((owner) => JSON.stringify((JSON.parse(owner) as unknown[]).sort()));
        const covered = known[0]!
          .filter(({ isUp }) => isUp)
          .flatMap(({ slots }) => slots.map(([from, to]) => to - from + 1))
          .reduce((a, b) => a + b, 0);
        const answering = this.servers.filter(({ answers }) => answers).map(({ port }) => port);
        const areUp = known.every((view) =>
          view.every(({ port, isUp }) => isUp || !answering.includes(port)),
        );
        if (covered !== SLOTS || !areUp || new Set(sorted).size > 1) return false;
        return this.othersCanBeElected(known[0]!.filter(servesSlots).map(({ port }) => this.at(port)));
      },
      { timeoutMs: 30_000 },
    );
  }

  /** Has the replica of `master` take over, as an operator does: the servers may give an attempt up, and are asked again then. Answers the replica. */
  async failOver(master: RedisServer): Promise<RedisServer> {
    const replica = await this.replicaOf(master);
    let askAt = -Infinity;
    await eventually(
      async () => {
        if (!(await this.masters()).includes(master)) return true;
        if (performance.now() >= askAt) {
          askAt = performance.now() + FAILOVER_GIVEN_UP_MS;
          await replica.command('CLUSTER', 'FAILOVER');
        }
        return false;
      },
      { timeoutMs: 30_000 },
    );
    await this.settled();
    return replica;
  }

  /** Resolves once another node serves the slots of `master`. */
  async failedOver(master: RedisServer): Promise<void> {
    await eventually(async () => !(await this.masters()).includes(master), { timeoutMs: 30_000 });
    await this.settled();
  }

  /** Ends moves that were begun and not ended: the slots stay where they are. */
  async keepSlots(): Promise<void> {
    for (const { slot, servers } of this.moves.splice(0))
      for (const server of servers) await server.command('CLUSTER', 'SETSLOT', slot, 'STABLE');
    await this.electAfter(this.nodeTimeoutMs);
  }

  /** Resolves once every replica follows its master. */
  async replicated(): Promise<void> {
    await eventually(
      async () => {
        const roles = await Promise.all(
          this.servers.map(async (server) => String(await server.command('INFO', 'replication'))),
        );
        const links = roles.filter((role) => role.includes('role:slave'));
        return links.length === 3 && links.every((role) => role.includes('master_link_status:up'));
      },
      { timeoutMs: 30_000 },
    );
  }

  /** Begins to move a slot. `move` moves a key; `end` gives the slot to `to`. */
  async beginMove(slot: number, to: RedisServer) {
    // A replica knows nothing of the move: should the machine stand still for a while, it would take a slot over that is half gone.
    await this.electAfter(NO_ELECTION_MS);
    const from = await this.masterOfSlot(slot);
    const [fromId, toId] = [await idOf(from), await idOf(to)];
    this.moves.push({ slot, servers: [from, to] });
    await to.command('CLUSTER', 'SETSLOT', slot, 'IMPORTING', fromId);
    await from.command('CLUSTER', 'SETSLOT', slot, 'MIGRATING', toId);
    const keys = async () => (await from.command('CLUSTER', 'GETKEYSINSLOT', slot, 1_000)) as string[];
    const move = (key: string) => from.command('MIGRATE', '127.0.0.1', to.port, key, 0, 5_000);
    return {
      from,
      keys,
      move,
      end: async () => {
        // New keys may come until the slot is given away.
        for (let left; (left = await keys()).length > 0;) for (const key of left) await move(key);
        await to.command('CLUSTER', 'SETSLOT', slot, 'NODE', toId);
        await from.command('CLUSTER', 'SETSLOT', slot, 'NODE', toId);
        await this.electAfter(this.nodeTimeoutMs);
        await this.settled();
      },
    };
  }

  async stop(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop()));
  }

  private async form(): Promise<void> {
    const [first, ...others] = this.servers as [RedisServer, ...RedisServer[]];
    const share = Math.ceil(SLOTS / 3);
    for (let i = 0; i < 3; i++)
      await this.servers[i]!.command(
        'CLUSTER',
        'ADDSLOTSRANGE',
        i * share,
        Math.min(SLOTS, (i + 1) * share) - 1,
      );
    for (const other of others)
      await first.command('CLUSTER', 'MEET', '127.0.0.1', other.port, await busPortOf(other));
    await eventually(
      async () =>
        (await Promise.all(this.servers.map((server) => this.viewOf(server)))).every(
          (view) => view?.length === 6,
        ),
      { timeoutMs: 30_000 },
    );
    for (let i = 0; i < 3; i++)
      await this.servers[3 + i]!.command('CLUSTER', 'REPLICATE', await idOf(this.servers[i]!));
    this.leading = new Set(this.servers.slice(0, 3));
    await this.replicated();
    await this.settled();
    // A master tells its replicas apart once it has heard of their new role.
    await eventually(async () => {
      const views = await Promise.all(this.servers.map((server) => this.viewOf(server)));
      return views.every((view) => view!.filter(({ isMaster }) => !isMaster).length === 3);
    });
  }

  /** How long a master may be silent until its replica stands for election. */
  private async electAfter(ms: number): Promise<void> {
    for (const server of this.servers) await server.command('CONFIG', 'SET', 'cluster-node-timeout', ms);
  }

  /** Notes who leads by now. Answers whether everybody else can be elected. */
  private othersCanBeElected(masters: readonly RedisServer[]): boolean {
    const electionMs = 2 * Math.max(2 * this.nodeTimeoutMs, 2_000);
    const now = performance.now();
    for (const master of masters) if (!this.leading.has(master)) this.electedAt.set(master, now);
    this.leading = new Set(masters);
    return [...this.electedAt].every(([server, at]) => this.leading.has(server) || now - at > electionMs);
  }

  private at(port: number): RedisServer {
    return this.servers.find((server) => server.port === port)!;
  }

  private async view(): Promise<NodeView[]> {
    const views = await Promise.all(this.servers.map((server) => this.viewOf(server)));
    const [view] = views.filter((one) => one !== undefined).sort((a, b) => up(b) - up(a));
    if (!view) throw new Error('no node answers');
    return view;
  }

  /** `undefined` where the node is down or frozen. */
  private async viewOf(server: RedisServer): Promise<NodeView[] | undefined> {
    if (!server.answers) return undefined;
    const answer = await server.command('CLUSTER', 'NODES').catch(() => undefined);
    return (answer as string | undefined)?.trim().split('\n').map(parse);
  }
}

export function slotOfKey(key: string): number {
  return slotOf(`{${bucketOf(key)}}`);
}

/** Lease keys, so many for each bucket. */
export function keysOfAllBuckets(each: number): string[] {
  const missing = new Map(Array.from({ length: BUCKETS }, (_, bucket) => [bucket, each]));
  const keys: string[] = [];
  for (let i = 0; keys.length < BUCKETS * each; i++) {
    const left = missing.get(bucketOf(`key:${i}`))!;
    if (left === 0) continue;
    missing.set(bucketOf(`key:${i}`), left - 1);
    keys.push(`key:${i}`);
  }
  return keys;
}

const serves = ({ slots }: NodeView, slot: number): boolean =>
  slots.some(([from, to]) => from <= slot && slot <= to);
const servesSlots = ({ slots }: NodeView): boolean => slots.length > 0;
const up = (view: NodeView[]): number => view.filter(({ isUp }) => isUp).length;

function parse(line: string): NodeView {
  const [id, address, flags, masterId, , , , , ...slots] = line.split(' ');
  const states = flags!.split(',');
  return {
    id: id!,
    port: Number(/:(\d+)@/.exec(address!)![1]),
    isMaster: states.includes('master'),
    isUp: !states.some((flag) => flag.startsWith('fail') || flag === 'handshake' || flag === 'noaddr'),
    masterId: masterId!,
    slots: slots
      // Slots on the move are in brackets.
      .filter((range) => !range.startsWith('['))
      .map((range) => range.split('-').map(Number))
      .map(([from, to = from]) => [from!, to!] as const),
  };
}

async function idOf(server: RedisServer): Promise<string> {
  return String(await server.command('CLUSTER', 'MYID'));
}

async function busPortOf(server: RedisServer): Promise<string> {
  return ((await server.command('CONFIG', 'GET', 'cluster-port')) as string[])[1]!;
}
