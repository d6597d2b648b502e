import { ReadableStream } from 'node:stream/web';
import type { Afterlife } from './afterlife.js';

/** An async iterable that is read under leases. It stays what it was; only its iterator is another. */
export function leasedIterable(source: AsyncIterable<unknown>, afterlife: Afterlife): AsyncIterable<unknown> {
  const open = () => new LeasedIterator(() => source[Symbol.asyncIterator](), afterlife);
  // A generator is its own iterator, and may be read without asking for one.
  if (typeof (source as Partial<AsyncIterator<unknown>>).next !== 'function')
    return overlay(source, { [Symbol.asyncIterator]: open });
  const iterator = open();
  const { next, return: end, throw: fail } = iterator;
  const own = { [Symbol.asyncIterator]: () => iterator, [Symbol.asyncDispose]: end };
  return overlay(source, { ...own, next, return: end, throw: fail });
}

/** A web stream that is read under leases. */
export function leasedWebStream(
  source: ReadableStream<unknown>,
  afterlife: Afterlife,
): ReadableStream<unknown> {
  const iterator = new LeasedIterator(() => {
    const reader = source.getReader();
    return {
      next: () => reader.read() as Promise<IteratorResult<unknown>>,
      return: async () => {
        await reader.cancel();
        return { done: true, value: undefined };
      },
    };
  }, afterlife);
  return new ReadableStream<unknown>(
    {
      async pull(controller) {
        const result = await iterator.next();
        if (result.done) controller.close();
        else controller.enqueue(result.value);
      },
      async cancel() {
        await iterator.return();
      },
    },
    { highWaterMark: 0 },
  );
}

const BODY_READERS = ['json', 'text', 'arrayBuffer', 'blob', 'bytes', 'formData'] as const;

/** Of which Node 20 has no `bytes`. */
type BodyReaders = Record<(typeof BODY_READERS)[number], () => Promise<unknown>>;

/** A web response whose body is read under leases, by whatever method. */
export function leasedResponse(response: Response, afterlife: Afterlife): Response {
  const body = leasedWebStream(response.body as ReadableStream<unknown>, afterlife);
  return withBodyOf(response, new Response(body as globalThis.ReadableStream, { headers: response.headers }));
}

function withBodyOf(response: Response, read: Response): Response {
  return overlay(response, {
    get body() {
      return read.body;
    },
    get bodyUsed() {
      return read.bodyUsed;
    },
    clone: () => withBodyOf(response, read.clone()),
    ...Object.fromEntries(BODY_READERS.map((name) => [name, () => (read as Response & BodyReaders)[name]()])),
  });
}

type Step = (source: AsyncIterator<unknown>) => Promise<IteratorResult<unknown>>;

/** Reads a source in the context of the method that returned it; the end of a lease ends it, also a read in progress. */
class LeasedIterator implements AsyncIterator<unknown> {
  private source: AsyncIterator<unknown> | undefined;
  private cutBy: Error | undefined;
  private rejectRead: ((reason: Error) => void) | undefined;

  constructor(
    private readonly open: () => AsyncIterator<unknown>,
    private readonly afterlife: Afterlife,
  ) {}

  readonly next = (...given: [] | [unknown]) => this.step((source) => source.next(...given));

  readonly throw = (error: unknown) =>
    this.step(async (source) => {
      if (!source.throw) throw error;
      return source.throw(error);
    });

  readonly return = async (): Promise<IteratorResult<unknown>> => {
    try {
      this.source ??= this.afterlife.run(this.open);
      await this.afterlife.run(() => this.source!.return?.());
      return { done: true, value: undefined };
    } finally {
      this.afterlife.finish(this.cut);
    }
  };

  [Symbol.asyncIterator](): this {
    return this;
  }

  private async step(go: Step): Promise<IteratorResult<unknown>> {
    if (!this.source) {
      this.source = this.afterlife.run(this.open);
      this.afterlife.begin(this.cut);
    }
    try {
      const result = await this.read(this.source, go);
      if (result.done) this.afterlife.finish(this.cut);
      return result;
    } catch (error) {
      this.afterlife.finish(this.cut);
      throw error;
    }
  }

  private read(source: AsyncIterator<unknown>, go: Step): Promise<IteratorResult<unknown>> {
    return new Promise((resolve, reject) => {
      this.rejectRead = reject;
      if (this.cutBy) reject(this.cutBy);
      else this.afterlife.run(() => go(source)).then(resolve, reject);
    });
  }

  private readonly cut = (reason: Error): void => {
    this.cutBy = reason;
    this.rejectRead?.(reason);
    // Its clean-up must not hold up, or fail, what has failed already.
    void Promise.resolve(this.afterlife.run(() => this.source?.return?.())).catch(() => undefined);
  };
}

/** `target` with some properties replaced; everything else works on the target itself. */
function overlay<T extends object>(target: T, own: Record<PropertyKey, unknown>): T {
  // A frozen one insists on its own properties.
  return new Proxy(Object.isFrozen(target) ? (Object.create(target) as T) : target, {
    get: (_, name) => {
      if (Object.hasOwn(own, name)) return own[name];
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    },
  });
}
