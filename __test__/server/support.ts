import { createServer, type ServerOptions } from '../../src/server/index.js'
import { FakeEngine } from './fake_engine.js'
import type { Server } from '../../src/server/index.js'

/** Parsed JSON, which tests look into freely. */
export type Loose = ReturnType<typeof JSON.parse>

const open = new Set<Server>()

/** A live server on a free port; closed after each test. */
export async function serve(options: Partial<ServerOptions> & { engine?: FakeEngine } = {}) {
  const engine = options.engine ?? new FakeEngine()
  const server = createServer({ ...options, engine })
  open.add(server)
  const { url } = await server.listen({ port: 0 })
  return {
    engine,
    server,
    url,
    post: (path: string, body: unknown, headers: Record<string, string> = {}) =>
      fetch(url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      }),
    chat: (body: Record<string, unknown>) =>
      fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        body: JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], ...body }),
      }),
  }
}

export async function closeAll(): Promise<void> {
  await Promise.all([...open].map((server) => server.close({ deadlineMs: 0 })))
  open.clear()
}

/** The data events of a stream; `[DONE]` is kept as it is. */
export async function events(response: Response): Promise<(Record<string, Loose> | '[DONE]')[]> {
  const text = await response.text()
  return text
    .split('\n\n')
    .filter((block) => block.startsWith('data: '))
    .map((block) => block.slice('data: '.length))
    .map((data) => (data === '[DONE]' ? data : (JSON.parse(data) as Record<string, Loose>)))
}

export async function json(response: Response): Promise<Record<string, Loose>> {
  return (await response.json()) as Record<string, Loose>
}

export const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}

export const call = (args: string, name = 'get_weather') =>
  `<tool_call>{"name":"${name}","arguments":${args}}</tool_call>`
