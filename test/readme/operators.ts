// The short examples of docs/doctor.md and docs/observability.md, compiled and run by test/docs.e2e-spec.ts.
import type { FencingService } from 'nestjs-fencing';

export async function diagnose(fencing: FencingService) {
  // #region diagnose
  const { findings, facts } = await fencing.diagnose(); // FencingService
  // #endregion
  return { findings, facts };
}

export async function explain(fencing: FencingService): Promise<void> {
  // #region audit
  for (const entry of await fencing.audit('report:42', { limit: 20 })) console.log(entry); // newest first
  // #endregion
}
