import js from '@eslint/js';
import prettier from 'eslint-config-prettier';
import { createNodeResolver, importX } from 'eslint-plugin-import-x';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

/**
 * The dependency rule: which modules each folder (or file) of the package may import (spec files aside, which may import more).
 * Whatever the pattern does not match is refused, `import type` and `import()` included.
 */
const rings = {
  core: /^(\.\/|node:)/,
  redis: /^(\.\/|\.\.\/core\/|node:|ioredis$)/,
  typeorm: /^(\.\/|\.\.\/core\/|node:|typeorm$|pg$)/,
  // Parts of a ring: they see it from inside.
  'redis/cluster': /^(\.\/|\.\.\/[a-z]|\.\.\/\.\.\/core\/|node:|ioredis$)/,
  'redis/quorum': /^(\.\/|\.\.\/[a-z]|\.\.\/\.\.\/core\/|node:|ioredis$)/,
  'typeorm/leases': /^(\.\/|\.\.\/[a-z]|\.\.\/\.\.\/core\/|node:|typeorm$|pg$)/,
  testing: /^(\.\/|\.\.\/core\/|node:)/,
  nest: /^(\.\/|\.\.\/core\/|node:|@nestjs\/|rxjs(\/|$)|reflect-metadata$)/,
  // A page on top of the module: it takes the service and the events from it, by their tokens.
  board:
    /^(\.\/|\.\.\/core\/|\.\.\/nest\/(tokens|fencing\.service|fencing-events)\.js$|node:|@nestjs\/|rxjs$)/,
  otel: /^(\.\/|\.\.\/core\/|node:|@opentelemetry\/api$)/,
  // A face of the finished package, as index.ts is; the doctor asks the servers itself.
  cli: /^(\.\/|\.\.\/index\.js$|\.\.\/core\/diagnosis\.js$|\.\.\/(redis|typeorm)\/|node:|ioredis$|pg$)/,
  // It puts the module and the memory store together, as index.ts does: FencingModule is what users' tests stand on.
  'testing/fencing-testing.module.ts':
    /^(\.\/|\.\.\/core\/|\.\.\/nest\/(fencing\.module|module-options\.js$)|@nestjs\/common$)/,
};

const sentence =
  'The dependency rule: core imports core; redis, typeorm and testing import core and their driver; nest imports core and @nestjs; nobody imports nest (see CONTRIBUTING.md).';

/** @type {import('eslint').Linter.Config[]} */
const ringConfigs = Object.entries(rings).map(([place, allowed]) => {
  const others = new RegExp(`^(?!${allowed.source.slice(1)})|^\\./\\.\\.`).source;
  // A selector's regular expression ends at its first slash.
  const inSelector = `/${others.replaceAll('\\/', '\\x2F').replaceAll('/', '\\x2F')}/`;
  return {
    name: `fencing/rings/${place}`,
    files: [`libs/fencing/src/${place}${place.endsWith('.ts') ? '' : '/**/*.ts'}`],
    ignores: ['**/*.spec.ts'],
    rules: {
      'no-restricted-imports': ['error', { patterns: [{ regex: others, message: sentence }] }],
      'no-restricted-syntax': [
        'error',
        { selector: `ImportExpression[source.value=${inSelector}]`, message: sentence },
        { selector: `TSImportType[source.value=${inSelector}]`, message: sentence },
      ],
    },
  };
});

export default defineConfig(
  { ignores: ['**/dist/**', 'coverage/**', '.data/**', 'test/consumers/**/*.ts'] },
  js.configs.recommended,
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    plugins: { 'import-x': importX },
    settings: {
      'import-x/extensions': ['.ts', '.mjs', '.js'],
      'import-x/parsers': { '@typescript-eslint/parser': ['.ts'] },
      'import-x/resolver-next': [
        createNodeResolver({
          extensions: ['.ts', '.mjs', '.js', '.json'],
          extensionAlias: { '.js': ['.ts', '.js'] },
          tsconfig: { configFile: `${import.meta.dirname}/tsconfig.json` },
        }),
      ],
    },
    rules: {
      'import-x/no-cycle': ['error', { ignoreExternal: true }],
      '@typescript-eslint/consistent-type-imports': ['error', { fixStyle: 'inline-type-imports' }],
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error',
      // What was caught is passed on as it is.
      '@typescript-eslint/prefer-promise-reject-errors': ['error', { allowThrowingUnknown: true }],
      '@typescript-eslint/return-await': ['error', 'in-try-catch'],
      '@typescript-eslint/require-await': 'off',
    },
  },
  ...ringConfigs,
  {
    name: 'fencing/app-uses-the-published-names',
    files: ['src/**/*.ts'],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          patterns: [{ regex: 'libs/fencing', message: "Import from 'nestjs-fencing', as every user does." }],
        },
      ],
    },
  },
  {
    name: 'fencing/specs',
    files: ['**/*.spec.ts', '**/*.e2e-spec.ts'],
    rules: {
      'no-restricted-globals': [
        'error',
        { name: 'jest', message: "In ES modules: import { jest } from '@jest/globals'." },
      ],
      '@typescript-eslint/no-explicit-any': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      '@typescript-eslint/unbound-method': 'off',
    },
  },
  {
    name: 'fencing/specs-and-scripts',
    files: ['**/*.spec.ts', '**/*.e2e-spec.ts', '**/*.mjs', '**/*.js'],
    rules: {
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-unsafe-assignment': 'off',
      '@typescript-eslint/no-unsafe-call': 'off',
      '@typescript-eslint/no-unsafe-member-access': 'off',
      '@typescript-eslint/no-unsafe-return': 'off',
    },
  },
  {
    name: 'fencing/scripts',
    files: ['**/*.mjs', '**/*.js'],
    rules: { 'no-undef': 'off' }, // the compiler checks them (checkJs)
  },
  prettier,
);
