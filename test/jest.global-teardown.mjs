/** What the global set-up has started. @type {{ stop(): Promise<void> }[]} */
export const services = [];

export default async function globalTeardown() {
  await Promise.all(services.map((service) => service.stop()));
}
