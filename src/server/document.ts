/**
 * `/openapi.json`, made from the shapes that requests are validated with, and a page that shows it without any
 * network: the files of swagger-ui, served from a folder of this package.
 */
import { OpenApiGeneratorV31, OpenAPIRegistry } from '@asteasolutions/zod-to-openapi'
import { Router, static as serveFolder } from 'express'
import { z } from 'zod'
import { bodyShape, chatFields, completionFields, detokenizeFields, tokenizeFields } from '../openai/fields.js'

const errorShape = z
  .object({
    error: z.object({
      message: z.string(),
      type: z.enum(['invalid_request_error', 'permission_error', 'rate_limit_error', 'server_error']),
      param: z.string().nullable(),
      code: z.string().nullable(),
    }),
  })
  .meta({ id: 'Error' })

const usageShape = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  total_tokens: z.int(),
  prompt_tokens_details: z.object({ cached_tokens: z.int() }),
})

const toolCallShape = z.object({
  id: z.string(),
  type: z.literal('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
  truncated: z.literal(true).optional().meta({ description: 'The answer ended before the arguments did.' }),
})

const responseHead = { id: z.string(), created: z.int(), model: z.string() }

const chatResponse = z
  .object({
    ...responseHead,
    object: z.literal('chat.completion'),
    choices: z.array(
      z.object({
        index: z.int(),
        message: z.object({
          role: z.literal('assistant'),
          content: z.string().nullable(),
          tool_calls: z.array(toolCallShape).optional(),
        }),
        logprobs: z.looseObject({}).nullable(),
        finish_reason: z.enum(['stop', 'length', 'tool_calls']),
      }),
    ),
    usage: usageShape,
  })
  .meta({ id: 'ChatCompletion' })

const completionResponse = z
  .object({
    ...responseHead,
    object: z.literal('text_completion'),
    choices: z.array(
      z.object({
        index: z.int(),
        text: z.string(),
        logprobs: z.looseObject({}).nullable(),
        finish_reason: z.enum(['stop', 'length']),
      }),
    ),
    usage: usageShape,
  })
  .meta({ id: 'TextCompletion' })

const modelShape = z
  .object({ id: z.string(), object: z.literal('model'), created: z.int(), owned_by: z.string() })
  .meta({ id: 'Model' })

const chatRequest = bodyShape(chatFields, ['messages']).meta({ id: 'ChatRequest' })
const completionRequest = bodyShape(completionFields, ['prompt']).meta({ id: 'CompletionRequest' })

const ERRORS: Readonly<Record<number, string>> = {
  400: 'The request is malformed; `param` names the field.',
  401: 'The API key is missing or wrong.',
  404: 'No such model.',
  413: 'The body is larger than 8 MiB.',
  422: 'The request asks for what is not served; `param` names the field.',
  429: 'Too many requests are waiting.',
  503: 'The server is shutting down.',
}

/** The OpenAPI 3.1 document of the server. */
export function openApiDocument(info: { readonly version: string; readonly model: string }) {
  const registry = new OpenAPIRegistry()
  const key = registry.registerComponent('securitySchemes', 'apiKey', { type: 'http', scheme: 'bearer' })

  const json = (schema: z.ZodType) => ({ 'application/json': { schema } })
  const failures = (...statuses: number[]) =>
    Object.fromEntries(
      statuses.map((status) => [status, { description: ERRORS[status] ?? '', content: json(errorShape) }]),
    )

  const post = (path: string, summary: string, body: z.ZodType, answer: z.ZodType, streams: boolean) => {
    registry.registerPath({
      method: 'post',
      path,
      summary,
      security: [{ [key.name]: [] }, {}],
      request: { body: { required: true, content: json(body) } },
      responses: {
        200: {
          description: streams ? 'The answer; with `stream`, its chunks as server-sent events.' : 'The answer.',
          content: streams ? { ...json(answer), 'text/event-stream': { schema: z.string() } } : json(answer),
        },
        ...failures(400, 401, 413, 422),
        ...(streams ? failures(404, 429, 503) : {}),
      },
    })
  }
  const get = (path: string, summary: string, answer: z.ZodType, extra: { readonly failures?: number[] } = {}) => {
    registry.registerPath({
      method: 'get',
      path,
      summary,
      ...(path.includes('{id}') ? { request: { params: z.object({ id: z.string() }) } } : {}),
      responses: { 200: { description: 'The answer.', content: json(answer) }, ...failures(...(extra.failures ?? [])) },
    })
  }

  post('/v1/chat/completions', 'Answer a conversation', chatRequest, chatResponse, true)
  post('/v1/completions', 'Go on from a text', completionRequest, completionResponse, true)
  get('/v1/models', 'The served model', z.object({ object: z.literal('list'), data: z.array(modelShape) }), {
    failures: [401],
  })
  get('/v1/models/{id}', 'One model', modelShape, { failures: [401, 404] })
  const tokens = z.object({ tokens: z.array(z.int()) })
  post('/tokenize', 'Text to token ids', bodyShape(tokenizeFields, ['content']), tokens, false)
  const text = z.object({ content: z.string() })
  post('/detokenize', 'Token ids to text', bodyShape(detokenizeFields, ['tokens']), text, false)
  get('/healthz', 'The process is alive', z.object({ status: z.literal('ok') }))
  get('/readyz', 'Requests are taken', z.object({ status: z.literal('ready') }), { failures: [503] })

  get('/openapi.json', 'This document', z.looseObject({}))

  return new OpenApiGeneratorV31(registry.definitions).generateDocument({
    openapi: '3.1.0',
    info: {
      title: 'tinyllm-engine',
      version: info.version,
      description: `OpenAI-compatible API of a small model in one process. Serving: ${info.model}.`,
    },
  })
}

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>tinyllm-engine API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
`
const START = "SwaggerUIBundle({ url: '/openapi.json', dom_id: '#ui' })\n"

/** The page at `/docs`. `folder` holds `swagger-ui.css` and `swagger-ui-bundle.js`. */
export function docsPage(folder: string): Router {
  const router = Router()
  router.use((_request, response, next) => {
    // The page needs nothing but this server.
    response.setHeader(
      'content-security-policy',
      "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'",
    )
    next()
  })
  router.get('/', (_request, response) => {
    response.type('html').send(PAGE)
  })
  router.get('/start.js', (_request, response) => {
    response.type('js').send(START)
  })
  router.use(serveFolder(folder, { index: false, dotfiles: 'ignore' }))
  return router
}
