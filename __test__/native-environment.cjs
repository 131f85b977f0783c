// Values made by a native addon belong to Node's main realm while a jest test runs in a realm of its
// own, so `instanceof Uint32Array` and friends would fail for reasons no user can meet. The test realm
// borrows the main realm's constructors.
const { TestEnvironment } = require('jest-environment-node')

const shared = [
  'Error',
  'TypeError',
  'RangeError',
  'SyntaxError',
  'Promise',
  'ArrayBuffer',
  'Uint8Array',
  'Uint32Array',
  'Int32Array',
  'Float32Array',
  'Float64Array',
  'BigUint64Array',
  'AbortController',
  'AbortSignal',
]

module.exports = class NativeEnvironment extends TestEnvironment {
  async setup() {
    await super.setup()
    for (const name of shared) this.global[name] = globalThis[name]
  }
}
