import type { SpanContext } from '@opentelemetry/api';
import type { Grant } from '../core/lease-store.js';

/** A refused write follows the grant that superseded it within a method's run; what is older is not looked for. */
const MOST_GRANTS = 1_000;

/** The spans of the newest grants of this process, so that a refused write can be linked to the one that superseded it. */
export class GrantSpans {
  private readonly spans = new Map<string, SpanContext>();

  remember({ key, generation }: Grant, span: SpanContext): void {
    const name = nameOf(key, generation);
    // A joined lease belongs to the call that took it.
    if (this.spans.has(name)) return;
    this.spans.set(name, span);
    if (this.spans.size > MOST_GRANTS) this.spans.delete(this.spans.keys().next().value!);
  }

  find(key: string, generation: number): SpanContext | undefined {
    return this.spans.get(nameOf(key, generation));
  }
}

function nameOf(key: string, generation: number): string {
  return `${generation} ${key}`;
}
