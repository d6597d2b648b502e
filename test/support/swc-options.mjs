// How TypeScript becomes JavaScript in tests: one set of options for Jest and for forked workers.
/** @type {import('@swc/core').Options} */
export const swcOptions = {
  module: { type: 'es6' },
  jsc: {
    target: 'es2022',
    keepClassNames: true,
    parser: { syntax: 'typescript', decorators: true },
    transform: { legacyDecorator: true, decoratorMetadata: true, useDefineForClassFields: false },
  },
};
