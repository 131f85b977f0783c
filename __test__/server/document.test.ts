import { mkdtemp, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import SwaggerParser from '@apidevtools/swagger-parser'
import { closeAll, json, serve } from './support.js'

afterEach(closeAll)

test('/openapi.json is a valid document of every route', async () => {
  const { url } = await serve()
  const document = await json(await fetch(`${url}/openapi.json`))
  expect(Object.keys(document['paths']).sort()).toEqual([
    '/detokenize',
    '/healthz',
    '/openapi.json',
    '/readyz',
    '/tokenize',
    '/v1/chat/completions',
    '/v1/completions',
    '/v1/models',
    '/v1/models/{id}',
  ])
  expect(Object.keys(document['components'].schemas)).toContain('ChatRequest')
  expect(document['components'].schemas.ChatRequest.required).toEqual(['messages'])
  await SwaggerParser.validate(structuredClone(document) as never)
})

test('/docs shows it from files of this server alone', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'docs-'))
  await writeFile(join(folder, 'swagger-ui-bundle.js'), '// bundle')
  await writeFile(join(folder, 'swagger-ui.css'), '/* css */')
  const { url } = await serve({ docsFolder: folder })
  const page = await (await fetch(`${url}/docs`)).text()
  expect(page).not.toMatch(/https?:\/\//)
  for (const [, path] of page.matchAll(/(?:src|href)="([^"]+)"/g)) {
    const response = await fetch(url + path)
    expect([path, response.status]).toEqual([path, 200])
    expect(response.headers.get('content-security-policy')).toContain("default-src 'self'")
    await response.text()
  }
  const { url: without } = await serve()
  expect((await fetch(`${without}/docs`)).status).toBe(404)
})
