/** @type {import('jest').Config} */
module.exports = {
  // Only what is tested: the build products hold package.json files of the same names.
  roots: ['<rootDir>/src', '<rootDir>/__test__'],
  testEnvironment: '<rootDir>/__test__/native-environment.cjs',
  testMatch: ['<rootDir>/__test__/**/*.test.ts'],
  transform: {
    '^.+\\.ts$': [
      '@swc/jest',
      { jsc: { target: 'es2022', parser: { syntax: 'typescript' } }, module: { type: 'commonjs' } },
    ],
  },
  moduleNameMapper: { '^(\\.{1,2}/.*)\\.js$': ['$1.ts', '$1.js', '$1'] },
  testTimeout: 120_000,
}
