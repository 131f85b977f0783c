import { defineConfig } from 'tsdown'

export default defineConfig({
  entry: ['src/index.ts', 'src/routing/index.ts', 'src/cli/index.ts'],
  format: ['esm', 'cjs'],
  platform: 'node',
  target: 'node20',
  dts: true,
  // One file per source file: dist/ mirrors src/, so `../binding.js` means the same from src/native.ts and from
  // dist/native.mjs, whichever entry it is reached from.
  unbundle: true,
  // The binding stays a file of its own beside dist/, where its loader looks for the .node file.
  deps: { neverBundle: [/binding\.js$/] },
})
