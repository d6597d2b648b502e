import { Injectable } from '@nestjs/common';
import type { OutboxCharge } from './outbox-charge.entity.js';

/** `chargeId` is missing where the provider declined for good. */
export interface ChargeAnswer {
  chargeId?: string;
}

const TIMEOUT_MS = 10_000;
/** Answers that say "later", not "no". */
const LATER = [408, 409, 425, 429];

/** A payment provider with idempotency keys over HTTP, as most of them have. */
@Injectable()
export class PaymentProvider {
  private readonly url = process.env.PAYMENT_PROVIDER_URL;

  get isConfigured(): boolean {
    return this.url !== undefined;
  }

  /** Rejects where it is not known whether the provider charged: send it again. */
  async charge(charge: OutboxCharge, signal: AbortSignal): Promise<ChargeAnswer> {
    const answer = await fetch(`${this.url}/charges`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': charge.idempotencyKey },
      body: JSON.stringify({ orderId: charge.orderId, amountCents: charge.amountCents }),
      signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]),
    });
    if (answer.ok) return { chargeId: ((await answer.json()) as { id: string }).id };
    if (answer.status >= 500 || LATER.includes(answer.status))
      throw new Error(`the provider answered ${answer.status}`);
    return {};
  }
}
