import { collect, type Collected, type ToolEvent } from '../../src/tools/events.js'
import { ToolParser } from '../../src/tools/parser.js'

export const WEATHER_SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'

export const weatherTool = (name = 'get_weather', parameters = WEATHER_SCHEMA) =>
  `{"type":"function","function":{"name":"${name}","parameters":${parameters}}}`

/** The events of each piece, then those of the end. */
export function parsePieces(pieces: readonly string[], requestId = 'req7'): ToolEvent[][] {
  const parser = new ToolParser(requestId)
  return [...pieces.map((piece) => parser.push(piece)), parser.finish()]
}

/** Folded answer of a text that comes in these pieces. */
export function fold(...pieces: string[]): Collected {
  const parser = new ToolParser('req7')
  const events = [...pieces.flatMap((piece) => parser.push(piece)), ...parser.finish()]
  return collect(events, { lastCallCut: parser.lastCallCut })
}

/** The text that was said as content, and for each call its name and its arguments. */
export function shape({ content, calls }: Collected): [string | null, ...[string, string][]] {
  return [content, ...calls.map((call): [string, string] => [call.name, call.arguments])]
}
