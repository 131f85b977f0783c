import {
  BackendSettings,
  canRoute,
  httpBackend,
  routeSchema,
  routedBackend,
  routingCap,
} from '../../src/routing/index.js'
import { memoryTools } from './examples.js'
import { ScriptedBackend } from './scripted.js'

describe('the request backend', () => {
  test('synopsis: a clone carrying the schema and a low completion cap', () => {
    const backend = new ScriptedBackend([], { temperature: 0.3, maxTokens: 2000 })
    const schema = routeSchema(memoryTools)
    const request = routedBackend(backend, schema, routingCap(backend, 512))
    expect(request).not.toBe(backend)
    expect(request.settings).toEqual(
      new BackendSettings({ jsonSchema: schema, jsonSchemaName: 'tool_route', maxTokens: 512, temperature: 0.3 }),
    )
  })

  test('routedBackend leaves the original untouched', () => {
    const own = { type: 'object', properties: {} }
    const backend = new ScriptedBackend([], { jsonSchema: own, jsonSchemaName: 'mine', maxTokens: 99 })
    routedBackend(backend, routeSchema(memoryTools), 5)
    expect(backend.settings).toEqual(new BackendSettings({ jsonSchema: own, jsonSchemaName: 'mine', maxTokens: 99 }))
  })

  test('routingCap only ever lowers a budget', () => {
    expect(routingCap({ settings: { maxTokens: 100 } }, 512)).toBe(100)
    expect(routingCap({ settings: { maxTokens: 4096 } }, 512)).toBe(512)
    expect(routingCap({ settings: { maxTokens: undefined } }, 512)).toBe(512)
    expect(routingCap({ settings: { maxTokens: null } }, 512)).toBe(512)
    expect(routingCap({ settings: {} }, 512)).toBe(512)
  })

  test('canRoute is the duck-typed test for a backend this works on', () => {
    const settings = { jsonSchema: undefined, jsonSchemaName: undefined, maxTokens: undefined, clone: () => settings }
    const good = { settings, clone: () => good }
    expect(canRoute(good)).toBe(true)
    expect(canRoute(new ScriptedBackend([]))).toBe(true)
    expect(canRoute(httpBackend({ baseUrl: 'http://127.0.0.1:1/v1', model: 'm' }))).toBe(true)
    for (const member of ['jsonSchema', 'jsonSchemaName', 'maxTokens', 'clone'] as const) {
      const { [member]: _left, ...rest } = settings
      expect(canRoute({ ...good, settings: rest })).toBe(false)
    }
    for (const other of [
      null,
      undefined,
      7,
      'x',
      {},
      { settings },
      { clone: () => 1 },
      { settings: null, clone: () => 1 },
    ])
      expect(canRoute(other)).toBe(false)
  })
})
