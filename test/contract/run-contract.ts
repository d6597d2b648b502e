import type { ContractTools } from 'nestjs-fencing/testing';

/** The tests that a contract registers, to be run by hand: so that a test can see that they fail. */
export class ContractRun {
  private readonly tests = new Map<string, () => Promise<void>>();

  constructor(register: (tools: ContractTools) => void) {
    register({
      describe: (_title, body) => body(),
      it: (title, body) => {
        if (this.tests.has(title)) throw new Error(`two tests are called '${title}'`);
        this.tests.set(title, body);
      },
    });
  }

  get titles(): string[] {
    return [...this.tests.keys()];
  }

  /** Runs the one test whose title contains `part`, and answers how it failed; `undefined` where it passed. */
  async failure(part: string): Promise<Error | undefined> {
    const found = this.titles.filter((title) => title.includes(part));
    if (found.length !== 1) throw new Error(`${found.length} tests of the contract are about '${part}'`);
    try {
      await this.tests.get(found[0]!)!();
      return undefined;
    } catch (error) {
      return error as Error;
    }
  }
}
