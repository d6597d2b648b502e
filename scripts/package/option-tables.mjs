import ts from 'typescript';

/**
 * Every function and decorator that takes options, in the order of the page; the interfaces that they are read from.
 * `own`: without what an interface takes over from one that another section shows.
 * @type {readonly { call: string, interfaces: readonly string[], own?: boolean, see?: string }[]}
 */
const CALLS = [
  {
    call: 'FencingModule.forRoot(options)',
    interfaces: ['FencingModuleOptions', 'FencingModuleExtras'],
    see: '`forRootAsync({ imports, inject, useFactory })` takes `isGlobal` and `name` itself, and the others from its factory.',
  },
  {
    call: '@Leased(key, options)',
    interfaces: ['LeasedOptions'],
    see: 'The lease options are those of `FencingModule.forRoot({ defaults })` too. [Which numbers](everyday.md#which-numbers).',
  },
  { call: '@FencedWrite(options)', interfaces: ['FencedWriteOptions'] },
  {
    call: '@AcceptFencing(options)',
    interfaces: ['AcceptFencingOptions'],
    see: '[Across services](recipes.md#across-services).',
  },
  {
    call: 'FencingService.run(key, options, body), acquire(key, options)',
    interfaces: ['LeaseCallOptions'],
    own: true,
    see: 'And those of `@Leased` but `name`.',
  },
  {
    call: 'FencingService.write(options, body)',
    interfaces: ['WriteOptions'],
    see: 'And `operation: { id, payload }`, as below.',
  },
  { call: 'FencingService.write({ operation }, body)', interfaces: ['OperationOptions'] },
  { call: 'FencingService.revoke(key, options)', interfaces: ['RevokeOptions'] },
  {
    call: 'redisLeases(client, options), redisLeases(connection)',
    interfaces: ['RedisConnectionOptions'],
    see: '`url` only without a client. [Redis](stores.md#redis).',
  },
  {
    call: 'redisLeases({ replicas })',
    interfaces: ['ReplicasOptions'],
    see: '[Replicas](stores.md#replicas).',
  },
  {
    call: 'quorumLeases(nodes, options)',
    interfaces: ['QuorumLeasesOptions'],
    see: '[A quorum](stores.md#a-quorum-of-independent-redis-servers).',
  },
  {
    call: 'postgresLeases(options)',
    interfaces: ['PostgresLeasesOptions'],
    see: '[PostgreSQL without Redis](stores.md#postgresql-without-redis).',
  },
  { call: 'memoryLeases(options)', interfaces: ['MemoryLeasesOptions'] },
  { call: 'typeOrmFence(options)', interfaces: ['TypeOrmFenceOptions'] },
  {
    call: 'protectTable(queryRunner, table, options)',
    interfaces: ['ProtectTableOptions'],
    see: '[Protected tables](protections.md#protected-tables).',
  },
  {
    call: '@GenerationColumn(options)',
    interfaces: ['GenerationColumnOptions'],
    see: "And TypeORM's own options of a column, but `type`, `array` and `transformer`.",
  },
  {
    call: 'FencingBoardModule.forRoot(options)',
    interfaces: ['FencingBoardOptions'],
    see: '[The board](board.md).',
  },
  {
    call: 'instrumentFencing(options)',
    interfaces: ['FencingInstrumentationOptions'],
    see: '[Observability](observability.md).',
  },
  {
    call: 'FencingTestingModule.forRoot(options)',
    interfaces: ['FencingTestingOptions'],
    own: true,
    see: 'And those of `FencingModule.forRoot` but `leases` and `fence`. [Testing](testing.md).',
  },
];

/**
 * The page of all options, from the doc comments of the declarations: what an editor shows.
 * @param {Map<string, ts.Symbol>} exported of all entry points
 * @param {ts.TypeChecker} checker
 */
export function optionsPage(exported, checker) {
  const told = new Set(CALLS.flatMap(({ interfaces }) => interfaces));
  const untold = [...exported.keys()].filter((name) => name.endsWith('Options') && !told.has(name));
  // Inherited by what is told.
  const forgotten = untold.filter((name) => !['LeaseOptions', 'RedisLeasesOptions'].includes(name));
  if (forgotten.length > 0)
    throw new Error(
      `docs/options.md says nothing of ${forgotten.join(', ')}: scripts/package/option-tables.mjs`,
    );
  const sections = CALLS.flatMap(({ call, interfaces, own, see }) => [
    `## \`${call}\``,
    '',
    ...(see ? [see, ''] : []),
    '| option | type | default | meaning |',
    '| --- | --- | --- | --- |',
    ...interfaces.flatMap((name) => {
      const symbol = exported.get(name);
      if (!symbol) throw new Error(`There is no ${name}: scripts/package/option-tables.mjs`);
      return checker
        .getDeclaredTypeOfSymbol(symbol)
        .getProperties()
        .filter((option) => isOurs(option) && (!own || symbol.members?.has(option.escapedName)))
        .map((option) => rowOf(option, checker));
    }),
    '',
  ]);
  return [
    '# Options',
    '',
    'Every option there is. Names ending in `Ms` are milliseconds. A wrong name or value is refused by a `FencingConfigError` that names the option, the value and what',
    'is allowed: where it stands in code, when that is loaded; else at boot. Written by `npm run api` from the doc comments that editors show; do not edit.',
    '',
    ...sections,
  ]
    .join('\n')
    .trimEnd()
    .concat('\n');
}

/** Not what an interface takes over from one of another package. @param {ts.Symbol} option */
function isOurs(option) {
  return option.declarations?.some((one) => one.getSourceFile().fileName.includes('/libs/fencing/'));
}

/** @param {ts.Symbol} option @param {ts.TypeChecker} checker */
function rowOf(option, checker) {
  const [declaration] = option.declarations ?? [];
  if (
    !declaration ||
    !(ts.isPropertySignature(declaration) || ts.isMethodSignature(declaration)) ||
    !declaration.type
  )
    throw new Error(`${option.name} is no property.`);
  const type = declaration.type.getText().replaceAll(/\s+/g, ' ');
  const tag = option.getJsDocTags(checker).find(({ name }) => name === 'default');
  const isOptional = option.flags & ts.SymbolFlags.Optional;
  const meaning = ts.displayPartsToString(option.getDocumentationComment(checker));
  const cells = [
    `\`${option.name}\``,
    `\`${type}\``,
    tag ? asCode(ts.displayPartsToString(tag.text)) : isOptional ? 'none' : 'required',
    meaning,
  ];
  return `| ${cells.map((cell) => cell.replaceAll(/\s*\n\s*/g, ' ').replaceAll('|', '\\|')).join(' | ')} |`;
}

/** Values in backticks, sentences as they are. @param {string} text */
function asCode(text) {
  return /^('[^']*'|[\d_]+|true|false)$/.test(text) ? `\`${text}\`` : text;
}
