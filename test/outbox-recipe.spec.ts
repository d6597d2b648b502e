import { readFileSync } from 'node:fs';

const read = (file: string) => readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
const SHOWN: [file: string, region: string][] = [
  ['src/payments/payments.service.ts', 'outbox-write'],
  ['src/payments/outbox-dispatcher.ts', 'outbox-dispatch'],
  ['test/readme/recipes.ts', 'row-guard'],
  ['test/readme/recipes.ts', 'downstream-send'],
  ['test/readme/recipes.ts', 'downstream-accept'],
];

describe('docs/recipes.md', () => {
  it.each(SHOWN)('shows the code of %s (%s) as it is compiled', (file, region) => {
    const code = new RegExp(`// #region ${region}\n([^]*?)\n// #endregion`).exec(read(file))![1]!;
    expect(read('docs/recipes.md')).toContain('```ts\n' + code + '\n```');
  });

  it('shows no other code', () =>
    expect(read('docs/recipes.md').match(/^```ts/gm)).toHaveLength(SHOWN.length));
});
