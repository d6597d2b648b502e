import { Observable } from 'rxjs';
import type { FencingEmitter, FencingEvent, FencingEventName } from '../core/events.js';

/**
 * What happens to the leases and fenced writes of this application, as it happens. Inject it and subscribe:
 *
 * ```ts
 * events.of('write.stale').subscribe(({ generation, current }) => …);
 * ```
 *
 * Nothing is computed while nobody is subscribed. Events are told in passing: a subscriber must be quick, and never throw.
 * The same events are on the channels `nestjs-fencing:<name>` of `node:diagnostics_channel`, for all applications of a process.
 */
export class FencingEvents extends Observable<FencingEvent> {
  /** @internal */
  constructor(private readonly emitter: FencingEmitter) {
    super((subscriber) => emitter.listen((event) => subscriber.next(event)));
  }

  /** The events of these names only; the others are not computed for it. */
  of<Name extends FencingEventName>(
    ...names: readonly Name[]
  ): Observable<Extract<FencingEvent, { readonly name: Name }>> {
    type Event = Extract<FencingEvent, { readonly name: Name }>;
    return new Observable((subscriber) =>
      this.emitter.listen((event) => subscriber.next(event as Event), names),
    );
  }
}
