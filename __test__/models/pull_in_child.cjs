// Pulls one model in a process of its own and sends its source to the parent; "waiting" while another holds the lock.
const { readFileSync } = require('node:fs')
const { transformSync } = require('@swc/core')

require.extensions['.ts'] = (module, file) => {
  const jsc = { target: 'es2022', parser: { syntax: 'typescript' } }
  module._compile(
    transformSync(readFileSync(file, 'utf8'), { filename: file, jsc, module: { type: 'commonjs' } }).code,
    file,
  )
}
const Module = require('node:module')
const resolveFilename = Module._resolveFilename
Module._resolveFilename = function (request, parent, ...rest) {
  const typescript =
    request.startsWith('.') && parent?.filename.endsWith('.ts') ? request.replace(/\.js$/, '.ts') : request
  return resolveFilename.call(this, typescript, parent, ...rest)
}

const { resolveModel } = require('../../src/models/index.ts')
const [cacheDir, entry] = process.argv.slice(2)
const onProgress = ({ phase }) => phase === 'wait' && process.send('waiting')
resolveModel('little', { cacheDir, manifest: [JSON.parse(entry)], onProgress }).then(({ source }) => {
  process.send(source, () => process.exit(0))
})
