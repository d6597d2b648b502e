import os from 'node:os';
import { swcOptions } from './test/support/swc-options.mjs';

/** @type {import('jest').Config} */
export default {
  testEnvironment: 'node',
  roots: ['<rootDir>/src', '<rootDir>/libs', '<rootDir>/test'],
  testMatch: ['**/*.spec.ts', '**/*.e2e-spec.ts'],
  extensionsToTreatAsEsm: ['.ts'],
  moduleFileExtensions: ['js', 'mjs', 'cjs', 'ts', 'json', 'node'],
  modulePathIgnorePatterns: ['<rootDir>/dist/', '<rootDir>/libs/[^/]+/dist/'],
  moduleNameMapper: {
    '^nestjs-fencing$': '<rootDir>/libs/fencing/src/index.ts',
    '^nestjs-fencing/(redis|typeorm|testing|board|otel)$': '<rootDir>/libs/fencing/src/$1/index.ts',
    '^(\\.{1,2}/.*)\\.js$': '$1',
  },
  transform: { '^.+\\.ts$': ['@swc/jest', { swcrc: false, sourceMaps: 'inline', ...swcOptions }] },
  globalSetup: '<rootDir>/test/jest.global-setup.mjs',
  globalTeardown: '<rootDir>/test/jest.global-teardown.mjs',
  setupFiles: ['<rootDir>/test/jest.setup.mjs'],
  setupFilesAfterEnv: ['<rootDir>/test/jest.leaks.mjs'],
  testTimeout: 60_000,
  forceExit: true, // a leak has failed its file by then (jest.leaks.mjs); without this the run would hang as well
  // Jest's own choice on two cores would be one worker; most tests wait for servers rather than compute.
  maxWorkers: Math.max(2, Math.min(4, os.availableParallelism() - 1)),
  coverageProvider: 'babel',
  collectCoverageFrom: ['src/**/*.ts', 'libs/*/src/**/*.ts', '!**/*.spec.ts', '!src/main.ts'],
  coverageReporters: ['text', 'lcov'],
};
