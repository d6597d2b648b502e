// Processes that run contenders. With one for each, none is slowed by the code that another one has run, or by its garbage.
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';

/** @typedef {typeof import('./tasks.mjs')} Tasks */
/** @typedef {import('./worker.mjs').Who} Who */

const file = fileURLToPath(new URL('./worker.mjs', import.meta.url));

export class Worker {
  /** @type {((message: { result?: any, error?: string }) => void) | undefined} */
  #answer;
  /** @type {import('node:child_process').ChildProcess} */
  #child;

  /** @param {string} url of Redis */
  constructor(url) {
    this.#child = fork(file, [url], { execArgv: ['--expose-gc'] });
    this.#child.on('message', (/** @type {any} */ message) => this.#answer?.(message));
    this.#child.on('exit', (code, signal) =>
      this.#answer?.({ error: `the worker ended (${signal ?? code})` }),
    );
  }

  /** @param {string} url */
  static async start(url) {
    const worker = new Worker(url);
    await worker.#next('the worker');
    return worker;
  }

  /** @param {string} url @param {number} count */
  static startMany(url, count) {
    return Promise.all(Array.from({ length: count }, () => Worker.start(url)));
  }

  /**
   * @template {keyof Tasks} T
   * @param {T} task
   * @param {Who} who
   * @param {Parameters<Tasks[T]>[1]} options
   * @returns {Promise<Awaited<ReturnType<Tasks[T]>>>}
   */
  async do(task, who, options) {
    const answer = this.#next(who.name);
    this.#child.send({ task, who, options });
    return answer;
  }

  stop() {
    this.#answer = undefined;
    this.#child.disconnect();
  }

  /** @param {string} who @returns {Promise<any>} */
  #next(who) {
    return new Promise((resolve, reject) => {
      this.#answer = ({ result, error }) => {
        this.#answer = undefined;
        if (error === undefined) resolve(result);
        else reject(new Error(`${who}: ${error}`));
      };
    });
  }
}
