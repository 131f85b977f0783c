import { defineConfig } from 'tsdown'

const swagger = ['swagger-ui.css', 'swagger-ui-bundle.js', 'swagger-ui-bundle.js.LICENSE.txt', 'LICENSE', 'NOTICE']

export default defineConfig({
  entry: ['src/index.ts', 'src/routing/index.ts', 'src/server/index.ts', 'src/cli/index.ts'],
  format: ['esm', 'cjs'],
  platform: 'node',
  target: 'node20',
  dts: true,
  // One file per source file: dist/ mirrors src/, so `../binding.js` means the same from src/native.ts and from
  // dist/native.mjs, whichever entry it is reached from.
  unbundle: true,
  checks: { pluginTimings: false },
  // The binding stays a file of its own beside dist/, where its loader looks for the .node file.
  deps: { neverBundle: [/binding\.js$/] },
  // The page at /docs. Copied rather than depended on: swagger-ui-dist's own dependency reports installations home.
  copy: swagger.map((file) => ({ from: `node_modules/swagger-ui-dist/${file}`, to: 'dist/swagger-ui' })),
})
