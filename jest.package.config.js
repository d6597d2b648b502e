// npm run test:package [-- <pattern>]: the same tests against what is published, libs/fencing/dist: build it first (npm run build:lib).
// Tests that import the package by its name meet the built one; those that look inside it, its sources as ever.
import base from './jest.config.js';

/** @type {import('jest').Config} */
export default {
  ...base,
  modulePathIgnorePatterns: ['<rootDir>/dist/'],
  moduleNameMapper: {
    '^nestjs-fencing$': '<rootDir>/libs/fencing/dist/esm/index.js',
    '^nestjs-fencing/(redis|typeorm|testing|board|otel)$': '<rootDir>/libs/fencing/dist/esm/$1/index.js',
    '^(\\.{1,2}/.*)\\.js$': ['$1', '$1.js'],
  },
};
