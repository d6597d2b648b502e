// npm run test:typeorm03 [-- <pattern>]: the tests of all that stands on TypeORM, with the oldest version of it that is supported.
import base from './jest.config.js';

/** @type {import('jest').Config} */
export default {
  ...base,
  testMatch: ['**/test/{database,fence,protect,row,unknown,write}*.e2e-spec.ts'],
  moduleNameMapper: { ...base.moduleNameMapper, '^typeorm$': 'typeorm03' },
};
