// Free ports, and whether a server answers on one.
import net from 'node:net';

/**
 * A port of 127.0.0.1 that nobody listens on, below those that systems give to outgoing connections: so none of these takes
 * it before its server starts, or while that is restarted.
 * @returns {Promise<number>}
 */
export function freePort() {
  return new Promise((resolve, reject) => {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const server = net.createServer();
    server.once('error', (/** @type {NodeJS.ErrnoException} */ error) => {
      if (error.code === 'EADDRINUSE' || error.code === 'EACCES') resolve(freePort());
      else reject(error);
    });
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(port)));
  });
}

/**
 * Sends `question` and resolves true when what comes back matches `answer`.
 * @param {string} host
 * @param {number} port
 * @param {string | Buffer} question
 * @param {RegExp} answer
 * @returns {Promise<boolean>}
 */
function ask(host, port, question, answer) {
  return new Promise((resolve) => {
    const socket = net.connect({ host, port });
    /** @param {boolean} value */
    const done = (value) => {
      socket.destroy();
      resolve(value);
    };
    socket.setTimeout(500, () => done(false));
    socket.once('error', () => done(false));
    socket.once('connect', () => socket.write(question));
    socket.once('data', (data) => done(answer.test(String(data))));
  });
}

// A real start-up packet: the postmaster answers an SSLRequest while it still refuses sessions (57P03).
const startUp = Buffer.from('\0\0\0\0\0\x03\0\0user\0postgres\0database\0postgres\0\0', 'latin1');
startUp.writeInt32BE(startUp.length, 0);

/** @param {number} port @param {string} [host] */
export const postgresAnswers = (port, host = '127.0.0.1') => ask(host, port, startUp, /^R/);

/** @param {number} port @param {string} [host] */
export const redisAnswers = (port, host = '127.0.0.1') =>
  ask(host, port, 'PING\r\n', /^(\+PONG|-NOAUTH|-NOPERM|-WRONGPASS|-DENIED)/);

/** Whether the server behind a postgres:// or redis:// URL answers. @param {string} url */
export function answers(url) {
  const { protocol, hostname, port } = new URL(url);
  return protocol.startsWith('redis')
    ? redisAnswers(Number(port || 6379), hostname)
    : postgresAnswers(Number(port || 5432), hostname);
}
