import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { freePort } from '../../scripts/services.mjs';
import { type Exchange, type Message, PostgresWire, RedisWire, type Wire } from './wire.js';

export type Direction = 'requests' | 'replies';

interface Swallow {
  readonly matches: (request: string) => boolean;
  readonly keepOpen: boolean;
  readonly done: (request: string) => void;
}

/**
 * A proxy in front of a Redis or PostgreSQL server on this machine, through which a test makes the network misbehave:
 *
 *     const proxy = await TcpProxy.start(process.env.REDIS_URL!);
 *     const client = new Redis(proxy.url);
 *     const lost = proxy.swallowReplyOnce((request) => request.startsWith('SET'));
 */
export class TcpProxy {
  /** Every request that clients sent since the start or the last `forget()`, in the order of arrival. */
  readonly requests: Message[] = [];

  private readonly links = new Set<Link>();
  private readonly swallows: Swallow[] = [];
  private readonly losses: (Pick<Swallow, 'matches' | 'done'> & { readonly hangUp: boolean })[] = [];
  private readonly stalled = new Set<Direction>();
  private replyDelayMs = 0;
  private server?: Server;

  private constructor(
    private readonly target: URL,
    readonly port: number,
  ) {}

  /** Starts a proxy in front of the server of this postgres:// or redis:// URL. */
  static async start(url: string): Promise<TcpProxy> {
    const proxy = new TcpProxy(new URL(url), await freePort());
    await proxy.accept();
    return proxy;
  }

  /** The server's URL, through the proxy. */
  get url(): string {
    const url = new URL(this.target);
    url.host = `127.0.0.1:${this.port}`;
    return url.href;
  }

  /** Connections open at the moment. */
  get connections(): number {
    return this.links.size;
  }

  /** How many requests were seen: Redis commands, or PostgreSQL messages of type Q, P and E; or those of one type. */
  count(type?: string): number {
    return this.requests.filter((request) => !type || request.type === type).length;
  }

  forget(): void {
    this.requests.length = 0;
  }

  /**
   * Holds all bytes of one direction, or of both, on present and later connections, like a network that went silent: no
   * end of a connection gets through either.
   */
  stall(direction?: Direction): void {
    for (const each of both(direction)) this.stalled.add(each);
    this.adjust();
  }

  /** Lets go what `stall` held. */
  resume(direction?: Direction): void {
    for (const each of both(direction)) this.stalled.delete(each);
    this.adjust();
  }

  /** Gives every later byte of the server this much delay. */
  delayReplies(ms: number): void {
    this.replyDelayMs = ms;
    this.adjust();
  }

  /** Breaks all connections at once, on both sides. */
  cutAll(): void {
    for (const link of this.links) link.cut();
  }

  /** New connections are refused until `accept()`; those that exist go on. */
  refuse(): void {
    this.server?.close();
  }

  async accept(): Promise<void> {
    if (this.server?.listening) return;
    this.server = createServer({ allowHalfOpen: true }, (client) => this.connected(client));
    await once(this.server.listen({ port: this.port, host: '127.0.0.1' }), 'listening');
  }

  /**
   * Lets the next matching request through to the server, drops the whole of its reply, and then breaks the client's
   * connection, or leaves it open. Resolves to the request's text once the server has answered.
   */
  swallowReplyOnce(
    matches: (request: string) => boolean = () => true,
    { keepOpen = false }: { keepOpen?: boolean } = {},
  ): Promise<string> {
    return new Promise((done) => this.swallows.push({ matches, keepOpen, done }));
  }

  /**
   * From the next matching request on, nothing that its connection sends arrives any more, that request and the end of the
   * connection included: the server goes on as if its client were only slow. The client's side breaks with `hangUp`. Resolves
   * to the request's text.
   */
  loseRequestsFrom(
    matches: (request: string) => boolean,
    { hangUp = false }: { hangUp?: boolean } = {},
  ): Promise<string> {
    return new Promise((done) => this.losses.push({ matches, hangUp, done }));
  }

  async stop(): Promise<void> {
    const closed = this.server?.listening ? once(this.server, 'close') : undefined;
    this.server?.close();
    this.cutAll();
    await closed;
  }

  private connected(client: Socket): void {
    const upstream = connect({
      host: this.target.hostname,
      port: Number(this.target.port),
      allowHalfOpen: true,
    });
    const swallowing = new Map<Exchange, Swallow>();
    const WireOfTarget = this.target.protocol.startsWith('redis') ? RedisWire : PostgresWire;
    const wire: Wire = new WireOfTarget(
      (message) => this.requests.push(message),
      (exchange) => {
        const index = this.swallows.findIndex((swallow) => swallow.matches(exchange.text));
        const [swallow] = index < 0 ? [] : this.swallows.splice(index, 1);
        if (swallow) swallowing.set(exchange, swallow);
        const lost = this.losses.findIndex((loss) => loss.matches(exchange.text));
        if (lost < 0) return;
        link.isDeaf = true;
        this.adjust();
        const [loss] = this.losses.splice(lost, 1);
        if (loss!.hangUp) client.destroy();
        loss!.done(exchange.text);
      },
    );
    const link = new Link(client, upstream, () => this.links.delete(link));
    this.links.add(link);
    this.adjust();

    client.on('data', (chunk) => {
      wire.fromClient(chunk);
      link.requests.push(chunk);
    });
    upstream.on('data', (chunk) => {
      for (const { bytes, exchange, last } of wire.fromServer(chunk)) {
        const swallow = exchange && swallowing.get(exchange);
        if (!swallow) {
          link.replies.push(bytes);
        } else if (last) {
          swallowing.delete(exchange);
          if (!swallow.keepOpen) link.replies.push('cut');
          swallow.done(exchange.text);
        }
      }
    });
  }

  private adjust(): void {
    for (const link of this.links) {
      link.requests.set(link.isDeaf || this.stalled.has('requests'), 0);
      link.replies.set(this.stalled.has('replies'), this.replyDelayMs);
    }
  }
}

/** The two halves of one proxied connection. */
class Link {
  /** What the client sends does not arrive any more. */
  isDeaf = false;
  readonly requests: Lane;
  readonly replies: Lane;

  constructor(
    private readonly client: Socket,
    private readonly upstream: Socket,
    private readonly onGone: () => void,
  ) {
    this.requests = new Lane(upstream, () => this.cut());
    this.replies = new Lane(client, () => this.cut());
    this.watch(client, this.requests);
    this.watch(upstream, this.replies);
  }

  cut(): void {
    this.requests.clear();
    this.replies.clear();
    this.client.destroy();
    this.upstream.destroy();
  }

  private watch(from: Socket, lane: Lane): void {
    from.setNoDelay(true);
    from.on('error', () => undefined); // told by 'close'
    from.on('end', () => lane.push('end'));
    from.on('close', () => {
      lane.push('end');
      if (this.client.destroyed && this.upstream.destroyed) this.onGone();
    });
  }
}

/** What travels one way: bytes in order, then perhaps the end of the connection or a cut. */
class Lane {
  private readonly queue: { item: Buffer | 'end' | 'cut'; due: number }[] = [];
  private stalled = false;
  private delayMs = 0;
  private timer?: NodeJS.Timeout;

  constructor(
    private readonly to: Socket,
    private readonly onCut: () => void,
  ) {}

  push(item: Buffer | 'end' | 'cut'): void {
    this.queue.push({ item, due: performance.now() + this.delayMs });
    this.move();
  }

  set(stalled: boolean, delayMs: number): void {
    this.stalled = stalled;
    this.delayMs = delayMs;
    this.move();
  }

  clear(): void {
    clearTimeout(this.timer);
    this.queue.length = 0;
  }

  private move(): void {
    clearTimeout(this.timer);
    for (let next; !this.stalled && (next = this.queue[0]);) {
      const wait = next.due - performance.now();
      if (wait > 0) {
        this.timer = setTimeout(() => this.move(), wait);
        return;
      }
      this.queue.shift();
      if (next.item === 'cut') this.onCut();
      else if (this.to.destroyed) continue;
      else if (next.item === 'end') this.to.end();
      else this.to.write(next.item);
    }
  }
}

function both(direction?: Direction): Direction[] {
  return direction ? [direction] : ['requests', 'replies'];
}
