import type { StreamableFile } from '@nestjs/common';
import type { Subscribable } from 'rxjs';

/** What a decorated method may return: a promise, or what comes later by itself, as Nest streams it to a client. */
export type LaterResult =
  | PromiseLike<unknown>
  | AsyncIterable<unknown> // Node streams and web streams as well
  | Subscribable<unknown>
  | StreamableFile
  | { readonly body: unknown; readonly bodyUsed: boolean }; // a Response
