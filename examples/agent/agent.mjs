// An agent over a Model Context Protocol server, every decision of which is one of the offered actions.
//
//   npm run build && node examples/agent/agent.mjs "How many moons does Mars have?"
//
// With OPENAI_BASE_URL (and OPENAI_API_KEY) set, the decisions come from that server instead of this process:
// run `npm start` in another terminal and set OPENAI_BASE_URL=http://127.0.0.1:8080/v1.
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { load } from 'tinyllm-engine'
import { engineBackend, httpBackend, runToolLoop } from 'tinyllm-engine/routing'
import { planetsServer } from './planets_server.mjs'

const question = process.argv[2] ?? 'How many moons does Mars have?'

const client = new Client({ name: 'agent', version: '1.0.0' })
const [ours, theirs] = InMemoryTransport.createLinkedPair()
await Promise.all([planetsServer().connect(theirs), client.connect(ours)])

// The provider interface is two functions; this is all that a protocol client needs to fit it. Until a search has handed
// out identifiers there is nothing to read, so reading is not offered: the catalogue is asked for again every round.
const handedOut = new Set()
const provider = {
  async toolsForLlm() {
    const { tools } = await client.listTools()
    return tools
      .filter(({ name }) => name !== 'read_planet' || handedOut.size > 0)
      .map(({ name, description, inputSchema }) => ({
        type: 'function',
        function: {
          name,
          description,
          parameters:
            name === 'read_planet'
              ? { ...inputSchema, properties: { id: { type: 'string', enum: [...handedOut] } } }
              : inputSchema,
        },
      }))
  },
  async callTool(name, args, { signal }) {
    const result = await client.callTool({ name, arguments: args }, undefined, { signal })
    if (name === 'search_planets' && !result.isError) {
      for (const { id } of JSON.parse(result.content[0].text)) handedOut.add(id)
    }
    return result
  },
}

const { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: apiKey, TINYLLM_MODEL: model = 'smollm2-135m-instruct' } = process.env
const engine = baseUrl === undefined ? await load(model) : undefined
const backend = engine
  ? engineBackend(engine, { settings: { maxTokens: 256 }, maxStringLength: 80 })
  : httpBackend({ baseUrl, model, settings: { maxTokens: 256 }, ...(apiKey === undefined ? {} : { apiKey }) })

const system =
  'You answer questions about planets. Reply with one JSON action: {"tool": …, "arguments": …} to look something up, ' +
  'or {"tool":"none"} when the conversation already holds what is needed.'
const run = runToolLoop({
  backend,
  provider,
  messages: [
    { role: 'system', content: system },
    { role: 'user', content: question },
  ],
  // A 135M model does not always know when to stop.
  limits: { rounds: 6, identicalCalls: 2 },
})

try {
  for await (const event of run) {
    if (event.type === 'route') console.log(`round ${event.round}: ${event.action.text}`)
    if (event.type === 'result') console.log(`  ${event.isError ? 'error' : 'result'}: ${event.content}`)
    if (event.type === 'route_invalid') console.log(`  attempt ${event.attempt} failed: ${event.error}`)
    if (event.type === 'limit') console.log(`  limit reached: ${event.limit} (${event.max})`)
    if (event.type === 'answer') console.log(`answer: ${event.text}`)
  }
} finally {
  await engine?.close()
  await client.close()
}
