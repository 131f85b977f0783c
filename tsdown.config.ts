import { defineConfig } from 'tsdown'

export default defineConfig({
  entry: ['src/index.ts', 'src/routing/index.ts', 'src/cli/index.ts'],
  format: ['esm', 'cjs'],
  platform: 'node',
  target: 'node20',
  dts: true,
  // The binding stays a file of its own beside dist/, where its loader looks for the .node file.
  deps: { neverBundle: [/binding\.js$/] },
})
