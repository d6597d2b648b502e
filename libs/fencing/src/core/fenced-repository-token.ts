/** Tokens by entity class and name of the DataSource; one table for the ESM and the CommonJS copy of the package. */
const tokens = ((globalThis as Record<symbol, unknown>)[Symbol.for('nestjs-fencing/fenced-repositories')] ??=
  new WeakMap<object, Map<string, symbol>>()) as WeakMap<object, Map<string, symbol>>;

/** The injection token of the fenced repository of an entity. Its description is what Nest prints when it is not provided. */
export function fencedRepositoryToken(entity: { readonly name: string }, dataSource = 'default'): symbol {
  let ofEntity = tokens.get(entity);
  if (!ofEntity) tokens.set(entity, (ofEntity = new Map<string, symbol>()));
  let token = ofEntity.get(dataSource);
  if (!token) {
    const call = [`[${entity.name}]`, ...(dataSource === 'default' ? [] : [`'${dataSource}'`])].join(', ');
    token = Symbol(`nestjs-fencing: import FencedRepositoriesModule.forFeature(${call})`);
    ofEntity.set(dataSource, token);
  }
  return token;
}
