/**
 * The request fields, one row each: its shape in zod, and in words for the error message. Validation walks these
 * rows and `/openapi.json` is made from the same shapes. Tool fields and messages have readers of their own
 * (tools/request.ts, tools/render.ts); their shapes here are for the document.
 */
import { z } from 'zod'

export interface Field<S extends z.ZodType = z.ZodType> {
  readonly shape: S
  /** Completes "… must be". */
  readonly expected: string
}

function field<S extends z.ZodType>(shape: S, expected: string, description: string): Field<S> {
  return { shape: shape.meta({ description }) as S, expected }
}

const nonEmpty = z.string().min(1)
const MAX_TOKEN_ID = 2 ** 32 - 1

const sampling = {
  temperature: field(z.number().min(0).max(2), 'a number from 0 to 2', 'Sampling temperature; 0 is greedy. Default 1.'),
  top_p: field(
    z.number().gt(0).max(1),
    'a number above 0 and at most 1',
    'Keep the likeliest tokens that hold this much of the probability. Default 1.',
  ),
  top_k: field(
    z
      .int()
      .min(0)
      .max(2 ** 32 - 1),
    'an integer, 0 or more',
    'Keep the k likeliest tokens; 0 keeps all. Default 0.',
  ),
  min_p: field(
    z.number().min(0).max(1),
    'a number from 0 to 1',
    'Drop tokens less likely than this share of the likeliest. Default 0.',
  ),
  repetition_penalty: field(
    z.number().gt(0).max(100),
    'a number above 0 and at most 100',
    'Divides the logits of tokens seen before. Default 1.',
  ),
  presence_penalty: field(
    z.number().min(-2).max(2),
    'a number from -2 to 2',
    'Taken once from the logits of tokens already in the answer. Default 0.',
  ),
  frequency_penalty: field(
    z.number().min(-2).max(2),
    'a number from -2 to 2',
    'Taken from the logits once per time the token is in the answer. Default 0.',
  ),
  seed: field(z.int().min(0), 'an integer from 0 to 9223372036854775807', 'Same seed, same answer; 0 to 2^63 - 1.'),
  stop: field(
    z.union([nonEmpty, z.array(nonEmpty).min(1).max(4)]),
    'a non-empty string or 1 to 4 of them',
    'The answer ends before any of these.',
  ),
  logit_bias: field(
    z.record(z.string().regex(/^\d{1,9}$/), z.number().min(-100).max(100)),
    'an object from token ids to numbers from -100 to 100',
    'Added to the logits of tokens, by id.',
  ),
  max_tokens: field(z.int().min(1), 'an integer, 1 or more', 'Bound on the tokens of an answer.'),
  n: field(z.int().min(1).max(128), 'an integer from 1 to 128', 'Number of answers. Default 1.'),
  stream: field(z.boolean(), 'a boolean', 'Answer with server-sent events. Default false.'),
  stream_options: field(
    z.looseObject({ include_usage: z.boolean().nullish() }),
    'an object whose include_usage is a boolean',
    'With include_usage a last chunk tells the usage.',
  ),
  user: field(z.string().max(256), 'a string of at most 256 characters', 'Passed over.'),
  echo: field(z.boolean(), 'a boolean', 'Not served.'),
}

const jsonSchema = z.record(z.string(), z.unknown()).meta({ description: 'A JSON Schema' })
const functionName = z.string().regex(/^[A-Za-z0-9_-]{1,64}$/)
const toolName = z.object({ type: z.literal('function'), function: z.object({ name: functionName }) })

const toolCall = z
  .object({
    id: z.string(),
    type: z.literal('function'),
    function: z.object({ name: z.string(), arguments: z.string().meta({ description: 'JSON text' }) }),
  })
  .meta({ description: 'A call the assistant made' })

const content = z.union([z.string(), z.array(z.object({ type: z.literal('text'), text: z.string() }))])

export const messageShape = z.object({
  role: z.enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: content.nullish(),
  tool_calls: z.array(toolCall).nullish(),
  tool_call_id: z.string().nullish(),
})

export const toolShape = z.object({
  type: z.literal('function'),
  function: z.object({
    name: functionName,
    description: z.string().nullish(),
    parameters: jsonSchema.nullish(),
    strict: z.boolean().nullish(),
  }),
})

export const chatFields = {
  model: field(z.string(), 'a string', 'The model; the served one when absent.'),
  messages: field(z.array(messageShape).min(1), 'a non-empty array of messages', 'The conversation.'),
  ...sampling,
  max_completion_tokens: field(z.int().min(1), 'an integer, 1 or more', 'Bound on the tokens; wins over max_tokens.'),
  logprobs: field(z.boolean(), 'a boolean', 'Tell the log-probabilities of the tokens. Default false.'),
  top_logprobs: field(
    z.int().min(0).max(20),
    'an integer from 0 to 20',
    'Likeliest tokens told per place; needs logprobs.',
  ),
  close_within_budget: field(
    z.boolean(),
    'a boolean',
    'Steer a constrained answer to its end before max_tokens runs out. Default false.',
  ),
  tools: field(z.array(toolShape).max(128), 'an array of tools', 'Functions the model may call.'),
  tool_choice: field(
    z.union([
      z.enum(['auto', 'none', 'required']),
      toolName,
      z.object({
        type: z.literal('allowed_tools'),
        allowed_tools: z.object({ mode: z.enum(['auto', 'required']), tools: z.array(toolName).min(1) }),
      }),
    ]),
    'a tool choice',
    'Which tools are called: auto (default with tools), none, required, a named one, or some.',
  ),
  parallel_tool_calls: field(z.boolean(), 'a boolean', 'Allow up to four calls in an answer. Default true.'),
  response_format: field(
    z.union([
      z.object({ type: z.enum(['text', 'json_object']) }),
      z.object({
        type: z.literal('json_schema'),
        json_schema: z.object({
          name: functionName.nullish(),
          description: z.string().nullish(),
          schema: jsonSchema.nullish(),
          strict: z.boolean().nullish(),
        }),
      }),
    ]),
    'a response format',
    'What the answer is: text, any JSON object, or JSON under a schema.',
  ),
} satisfies Record<string, Field>

export const completionFields = {
  model: chatFields.model,
  prompt: field(
    z.union([z.string(), z.array(z.int().min(0).max(MAX_TOKEN_ID)).min(1), z.array(z.string()).length(1)]),
    'a string or an array of token ids',
    'The text to go on from. Control strings in it are control tokens.',
  ),
  ...sampling,
  logprobs: field(z.int().min(0).max(20), 'an integer from 0 to 20', 'Likeliest tokens told per place.'),
} satisfies Record<string, Field>

export const tokenizeFields = {
  content: field(z.string(), 'a string', 'The text.'),
  parse_special: field(z.boolean(), 'a boolean', 'Whether control strings become control tokens. Default false.'),
} satisfies Record<string, Field>

export const detokenizeFields = {
  tokens: field(z.array(z.int().min(0).max(MAX_TOKEN_ID)), 'an array of token ids', 'The token ids.'),
} satisfies Record<string, Field>

/** The shape of a body: the required fields, everything else optional or null, and further fields allowed. */
export function bodyShape(fields: Record<string, Field>, required: readonly string[]): z.ZodType {
  return z.looseObject(
    Object.fromEntries(
      Object.entries(fields).map(([name, { shape }]) => [name, required.includes(name) ? shape : shape.nullish()]),
    ),
  )
}
