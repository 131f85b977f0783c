/**
 * Who may ask: the API key and, only when asked for, other origins.
 */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { RequestHandler } from 'express'
import { ToolError } from '../openai/tool_error.js'

/** Refuses requests without the key (401). The comparison takes the same time whatever was sent. */
export function requireKey(key: string): RequestHandler {
  const expected = digest(key)
  return (request, _response, next) => {
    const [, given = ''] = /^Bearer +(.*)$/i.exec(request.headers.authorization ?? '') ?? []
    if (timingSafeEqual(digest(given), expected)) next()
    else next(new ToolError(401, null, 'invalid_api_key', 'the API key is missing or wrong'))
  }
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

/** Lets pages of other origins in: all of them (`true`) or those listed. */
export function allowOrigins(origins: true | readonly string[]): RequestHandler {
  return (request, response, next) => {
    const { origin } = request.headers
    if (origin !== undefined && (origins === true || origins.includes(origin))) {
      response.setHeader('access-control-allow-origin', origins === true ? '*' : origin)
      response.setHeader('access-control-expose-headers', 'x-request-id, x-tinyllm-ignored, retry-after')
      if (request.method === 'OPTIONS') {
        response.setHeader('access-control-allow-methods', 'GET, POST')
        response.setHeader('access-control-allow-headers', request.headers['access-control-request-headers'] ?? '')
      }
    }
    if (origins !== true) response.appendHeader('vary', 'origin')
    if (request.method === 'OPTIONS') response.status(204).end()
    else next()
  }
}
