import type { RedisClusterNode } from '../redis-client.js';

const SLOTS = 16_384;

/** The part of a key's name that decides its slot; `undefined` where that is the whole name. */
export function hashTag(name: string): string | undefined {
  return /^[^{]*\{([^}]+)\}/.exec(name)?.[1];
}

/** The slot of a name, as every Redis computes it (CRC-16/XMODEM of its hash tag). */
export function slotOf(name: string): number {
  let crc = 0;
  for (const byte of Buffer.from(hashTag(name) ?? name)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++)
      crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
  }
  return crc % SLOTS;
}

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** Which master serves a slot, as far as `node` knows; `undefined` where none does. */
export async function masterOf(
  node: Pick<RedisClusterNode, 'options' | 'call'>,
  slot: number,
): Promise<Address | undefined> {
  const ranges = (await node.call('CLUSTER', 'SLOTS')) as [number, number, ...[string | null, number][]][];
  for (const [from, to, master] of ranges)
    // A node that does not know its own name is where it was reached.
    if (from <= slot && slot <= to)
      return { host: master![0] || node.options.host!, port: Number(master![1]) };
  return undefined;
}

/** ioredis's `natMap`: where a node is reached from here. */
export function mapped(address: Address, natMap: unknown): Address {
  const name = `${address.host}:${address.port}`;
  const map = natMap as ((name: string) => Address | undefined) | Record<string, Address> | undefined;
  return (typeof map === 'function' ? map(name) : map?.[name]) ?? address;
}
