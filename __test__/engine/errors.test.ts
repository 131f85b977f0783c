/** The error tree: one table, the same codes in both languages. */
import { ERROR_TABLE, errorFromCode, httpStatusOf } from '../../src/errors.js'
import {
  AbortError,
  ContextLengthError,
  GrammarError,
  InternalError,
  InvalidRequestError,
  TinyLlmError,
} from '../../src/index.js'
import { nativeErrorCodes } from '../../src/native.js'

/** Raised by the TypeScript side alone. */
const ONLY_TYPESCRIPT = [
  'ERR_TINYLLM_BACKEND',
  'ERR_TINYLLM_MODEL_LOAD',
  'ERR_TINYLLM_MODEL_NOT_FOUND',
  'ERR_TINYLLM_ROUTE_CATALOGUE',
]

test('both languages know the same codes', () => {
  expect([...nativeErrorCodes(), ...ONLY_TYPESCRIPT].sort()).toEqual(Object.keys(ERROR_TABLE).sort())
})

test('every code makes an error of its class, with its own code, a status and a type', () => {
  for (const [code, { status, type }] of Object.entries(ERROR_TABLE)) {
    const error = errorFromCode(code, 'why', { details: { param: 'x' } })
    expect(error).toBeInstanceOf(TinyLlmError)
    expect(error).toBeInstanceOf(Error)
    expect(error).toMatchObject({ code, message: 'why' })
    expect(httpStatusOf(error)).toEqual({ status, type })
  }
  expect(errorFromCode('ERR_TINYLLM_REGEX', '')).toBeInstanceOf(GrammarError)
  expect(errorFromCode('ERR_TINYLLM_CONTEXT_LENGTH', '')).toBeInstanceOf(ContextLengthError)
})

test('a code nobody knows is a defect', () => {
  const error = errorFromCode('ERR_SOMETHING', 'why')
  expect(error).toBeInstanceOf(InternalError)
  expect(error.message).toBe('why (ERR_SOMETHING)')
  expect(httpStatusOf(new Error('no error of ours'))).toEqual({ status: 500, type: 'server_error' })
})

test('an AbortError has the name the platform gives its own', () => {
  expect(new AbortError().name).toBe('AbortError')
  expect(new InvalidRequestError('why')).toMatchObject({
    name: 'InvalidRequestError',
    code: 'ERR_TINYLLM_INVALID_REQUEST',
  })
})

test('an error of another copy of the package is recognised', () => {
  jest.isolateModules(() => {
    const other = jest.requireActual<typeof import('../../src/errors.js')>('../../src/errors.js')
    expect(other.GrammarError).not.toBe(GrammarError)
    const error = new other.GrammarError('ERR_TINYLLM_REGEX', 'why')
    expect(TinyLlmError.is(error)).toBe(true)
    expect(error).toBeInstanceOf(TinyLlmError)
    expect(error).toBeInstanceOf(GrammarError)
    expect(error).not.toBeInstanceOf(ContextLengthError)
  })
  expect(TinyLlmError.is(new Error('no'))).toBe(false)
  expect(TinyLlmError.is(null)).toBe(false)
})
