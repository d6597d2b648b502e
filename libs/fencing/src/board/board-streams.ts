import type { ServerResponse } from 'node:http';
import type { Board } from './board.js';
import type { ViewRequest } from './board-view.js';

/** The least time between two views for a visitor, ms. */
const BATCH_MS = 250;
/** A view is sent again after this long although nothing was heard: what is left of a lease changes by itself, ms. */
const REPEAT_MS = 2_000;
/** How many may watch at once. */
export const MOST_VISITORS = 32;
/** For each ms that views took to compute, this many pass before the next: at most a twentieth of the process. */
const REST = 20;

interface Visitor {
  readonly response: ServerResponse;
  readonly request: ViewRequest;
  version: number;
  sentAt: number;
}

/**
 * Sends visitors what they look at, as it changes: in batches, however much happens; a whole view each time, so that one that is
 * slow to read misses some, and nothing piles up for it.
 */
export class BoardStreams {
  private readonly visitors = new Set<Visitor>();
  private timer: NodeJS.Timeout | undefined;
  private restUntil = 0;
  private closed = false;

  constructor(private readonly board: Board) {}

  get size(): number {
    return this.visitors.size;
  }

  get isFull(): boolean {
    return this.closed || this.visitors.size >= MOST_VISITORS;
  }

  /** @param response the plain one of Node: nobody else answers it from here on */
  open(response: ServerResponse, request: ViewRequest): void {
    response.writeHead(200, {
      'Content-Type': 'text/event-stream; charset=utf-8',
      // no-transform: a middleware that compresses would hold back what it gets.
      'Cache-Control': 'no-store, no-transform',
      'X-Accel-Buffering': 'no',
      'X-Content-Type-Options': 'nosniff',
    });
    response.write('retry: 1000\n\n');
    const visitor: Visitor = { response, request, version: -1, sentAt: 0 };
    this.visitors.add(visitor);
    response.once('close', () => this.leave(visitor));
    response.on('error', () => this.leave(visitor));
    this.send(visitor, performance.now());
    this.timer ??= setInterval(() => this.sendAll(), BATCH_MS).unref();
  }

  close(): void {
    this.closed = true;
    for (const visitor of [...this.visitors]) {
      visitor.response.end();
      this.leave(visitor);
    }
  }

  private leave(visitor: Visitor): void {
    this.visitors.delete(visitor);
    if (this.visitors.size > 0) return;
    clearInterval(this.timer);
    this.timer = undefined;
  }

  private sendAll(): void {
    const began = performance.now();
    if (began < this.restUntil) return;
    for (const visitor of [...this.visitors]) {
      const due = visitor.version !== this.board.log.version || began - visitor.sentAt >= REPEAT_MS;
      if (due && !visitor.response.writableNeedDrain) this.send(visitor, began);
    }
    const now = performance.now();
    this.restUntil = now + REST * (now - began);
  }

  private send(visitor: Visitor, now: number): void {
    visitor.version = this.board.log.version;
    visitor.sentAt = now;
    visitor.response.write(`data: ${JSON.stringify(this.board.view(visitor.request))}\n\n`);
  }
}
