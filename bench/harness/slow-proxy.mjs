// A TCP proxy that can hold each reply back: what a caller's time grows by tells how many replies it waits for.
import net from 'node:net';

/**
 * @param {string} url of the server behind it
 * @returns {Promise<{ url: string, delayMs: number, stop(): void }>}
 */
export function slowProxy(url) {
  const target = new URL(url);
  /** @type {Set<net.Socket>} */
  const sockets = new Set();
  const proxy = {
    url,
    delayMs: 0,
    stop: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.on('data', (data) => upstream.write(data));
    upstream.on('data', (data) => {
      if (proxy.delayMs === 0) client.write(data);
      else setTimeout(() => client.write(data), proxy.delayMs);
    });
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const at = new URL(url);
      at.host = `127.0.0.1:${/** @type {net.AddressInfo} */ (server.address()).port}`;
      proxy.url = at.href;
      resolve(proxy);
    });
  });
}
