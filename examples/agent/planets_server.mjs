// A Model Context Protocol server over a small real data set: the planets of the solar system
// (figures from NASA's Planetary Fact Sheet, which is in the public domain).
import { readFileSync } from 'node:fs'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { z } from 'zod'

const planets = JSON.parse(readFileSync(new URL('planets.json', import.meta.url), 'utf8'))
const text = (value) => ({ content: [{ type: 'text', text: JSON.stringify(value) }] })

export function planetsServer() {
  const server = new McpServer({ name: 'planets', version: '1.0.0' })

  server.registerTool(
    'search_planets',
    {
      description: 'Find planets by kind; gives their identifiers and names.',
      inputSchema: { kind: z.enum(['terrestrial', 'gas giant', 'ice giant', 'any']) },
    },
    ({ kind }) => text(planets.filter((p) => kind === 'any' || p.kind === kind).map(({ id, name }) => ({ id, name }))),
  )

  server.registerTool(
    'read_planet',
    {
      description: 'Everything known about one planet: radius, mass, length of its day and year, moons.',
      inputSchema: { id: z.enum(planets.map((p) => p.id)) },
    },
    ({ id }) => text(planets.find((p) => p.id === id)),
  )

  return server
}
