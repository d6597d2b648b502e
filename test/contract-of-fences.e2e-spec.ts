import { describe, expect, it } from '@jest/globals';
import { fenceContract } from 'nestjs-fencing/testing';
import { fencedDatabase } from './contract/fenced-database.js';
import { MUTANT_FENCES, RightFence } from './contract/mutant-fences.js';
import { ContractRun } from './contract/run-contract.js';

describe('the fence on PostgreSQL', () => {
  fenceContract({ describe, it }, () => fencedDatabase());
});

describe('the contract of fences', () => {
  const failureOf = (Mutant: (typeof MUTANT_FENCES)[number][0], title: string) =>
    new ContractRun((tools) =>
      fenceContract(tools, () => fencedDatabase((fence) => new Mutant(fence))),
    ).failure(title);

  it.each([...new Set(MUTANT_FENCES.map(([, title]) => title))])(
    'passes with the same fence without a mistake (%s)',
    async (title) => {
      expect(await failureOf(RightFence, title)).toBeUndefined();
    },
  );

  it.each(MUTANT_FENCES.map(([Mutant, title]) => [Mutant.name, title, Mutant] as const))(
    'fails on the mistake %s (%s)',
    async (_name, title, Mutant) => {
      expect((await failureOf(Mutant, title))?.message).toEqual(expect.any(String));
    },
  );
});
