import http from 'node:http';
import { createInterface } from 'node:readline';

/** Reads a stream of server-sent events, each a JSON document. */
export async function readEvents(url: string, headers: Record<string, string> = {}) {
  const response = await new Promise<http.IncomingMessage>((resolve, reject) => {
    http.get(url, { headers, agent: false }, resolve).on('error', reject);
  });
  if (response.statusCode !== 200) {
    response.destroy();
    throw new Error(`${url} answered ${response.statusCode}`);
  }
  const ended = new Promise<void>((resolve) => response.once('close', resolve));
  const lines = createInterface({ input: response })[Symbol.asyncIterator]();
  return {
    /** The next event. */
    async next(): Promise<unknown> {
      for (;;) {
        const { done, value } = (await lines.next()) as IteratorResult<string, undefined>;
        if (done) throw new Error(`${url} ended`);
        if (value.startsWith('data: ')) return JSON.parse(value.slice('data: '.length)) as unknown;
      }
    },
    ended,
    close(): void {
      response.destroy();
    },
  };
}
