import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Gate } from './gate.js';

export interface Charge {
  readonly id: string;
  readonly orderId: string;
  readonly amountCents: number;
}

/** A payment provider as they are: it charges once for each idempotency key, and answers a repeated request as the first. */
export class FakePaymentProvider {
  /** What customers really paid. */
  readonly charges = new Map<string, Charge>();
  /** The idempotency keys as they came, repeats included. */
  readonly requests: string[] = [];
  /** Holds the answer to the next request, after the charge was made. */
  holdNext: { readonly charged: Gate; readonly mayAnswer: Gate } | undefined;
  /** Answers the next requests with these, and charges nothing. */
  readonly failures: number[] = [];
  private readonly server: Server = createServer((request, response) => void this.handle(request, response));

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  hold() {
    this.holdNext = { charged: new Gate(), mayAnswer: new Gate() };
    return this.holdNext;
  }

  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let body = '';
    for await (const chunk of request) body += String(chunk);
    const key = String(request.headers['idempotency-key']);
    this.requests.push(key);
    const failure = this.failures.shift();
    if (failure) return void response.writeHead(failure).end();
    const { orderId, amountCents } = JSON.parse(body) as Charge;
    const charge = this.charges.get(key) ?? { id: `ch_${this.charges.size + 1}`, orderId, amountCents };
    this.charges.set(key, charge);
    const held = this.holdNext;
    this.holdNext = undefined;
    held?.charged.open();
    await held?.mayAnswer.wait();
    response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(charge));
  }
}
