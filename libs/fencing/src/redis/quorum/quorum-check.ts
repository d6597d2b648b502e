import type { Clock } from '../../core/clock.js';
import { FencingConfigError, StoreUnavailableError } from '../../core/errors.js';
import type { StoreFinding } from '../../core/lease-store.js';
import { majorityOf, Poll, type QuorumNode, tooFewAnswers } from './quorum-poll.js';

/**
 * Checks each node, and that they are different servers.
 * @throws FencingConfigError where one is set up wrongly, StoreUnavailableError where too few answer
 */
export async function checkNodes(
  nodes: readonly QuorumNode[],
  clock: Clock,
  nodeTimeoutMs: number,
): Promise<StoreFinding[]> {
  const poll = new Poll(nodes, clock, (store) => store.check());
  await poll.until(() => false, nodeTimeoutMs);
  const findings: StoreFinding[] = nodes.length % 2 === 0 ? [evenCount(nodes.length)] : [];
  poll.votes.forEach((vote, at) => {
    const { name } = nodes[at]!;
    if (vote?.error instanceof FencingConfigError)
      throw new FencingConfigError(`quorumLeases, ${name}: ${vote.error.message}`, vote.error);
    for (const found of vote?.value ?? [])
      findings.push({ ...found, problem: `${capital(name)}: ${found.problem}` });
    if (!vote || vote.error) findings.push(silentNode(name, vote?.error, nodes.length));
  });
  if (poll.values.length < majorityOf(nodes.length)) throw tooFewAnswers(nodes, poll.votes);
  return [...findings, ...(await checkIdentities(nodes, clock, nodeTimeoutMs))];
}

async function checkIdentities(
  nodes: readonly QuorumNode[],
  clock: Clock,
  nodeTimeoutMs: number,
): Promise<StoreFinding[]> {
  const poll = new Poll(nodes, clock, (_, node) => node.identify());
  await poll.until(() => false, nodeTimeoutMs);
  const firstOf = new Map<string, string>();
  const findings: StoreFinding[] = [];
  poll.votes.forEach((vote, at) => {
    const { name } = nodes[at]!;
    const { runId, isReplica } = vote?.value ?? {};
    if (isReplica)
      findings.push({
        problem: `${capital(name)} is a replica.`,
        consequence:
          'It refuses every step, so the quorum has one node less; and a replica is not independent of its primary.',
        fix: 'Give quorumLeases servers that do not replicate each other.',
      });
    if (runId === undefined) return;
    const first = firstOf.get(runId);
    if (first !== undefined)
      throw new FencingConfigError(
        `quorumLeases: ${first} and ${name} are the same Redis server, so one failure takes both. Give it different servers.`,
      );
    firstOf.set(runId, name);
  });
  return findings;
}

function evenCount(count: number): StoreFinding {
  return {
    problem: `quorumLeases has ${count} nodes, an even number.`,
    consequence: `${majorityOf(count)} of them must answer: it survives no more failures than ${count - 1} nodes do, and there is one more to fail.`,
    fix: `Use ${count - 1} or ${count + 1} nodes.`,
  };
}

function silentNode(name: string, error: Error | undefined, count: number): StoreFinding {
  const why = error instanceof StoreUnavailableError ? error.message : 'no answer in time.';
  return {
    problem: `${capital(name)} of quorumLeases does not answer (${why.replace(/\.$/, '')}).`,
    consequence: `Leases go on with the other nodes, while ${majorityOf(count)} of ${count} answer.`,
    fix: 'Bring it back. It may come back empty.',
  };
}

function capital(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}
