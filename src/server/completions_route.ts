/**
 * `POST /v1/completions`: the legacy route, a raw prompt and no parsing.
 */
import type { GenerateResult, TokenLogprob } from '../engine.js'
import { startChoices } from '../chat/answer.js'
import type { CompletionRequest } from '../openai/request.js'
import { legacyLogprobsJson, textCompletion, usageJson } from '../openai/wire.js'
import { together, type Exchange } from './chat_route.js'

export async function serveCompletion(exchange: Exchange, request: CompletionRequest): Promise<void> {
  const { engine, head, work, response } = exchange
  const generate = {
    ...request.sampling,
    // As it came: the engine tokenizes a long text off this thread.
    prompt: request.prompt,
    ...(request.maxTokens === null ? {} : { maxTokens: request.maxTokens }),
    contextOverflow: 'truncate' as const,
    ...(request.logprobs === null ? {} : { logprobs: request.logprobs }),
    signal: work.signal,
  }
  const generations = startChoices(engine, generate, request.choices)
  const logprobsOf = (tokens: readonly TokenLogprob[] | undefined, offset: number) =>
    request.logprobs === null ? null : legacyLogprobsJson(tokens ?? [], offset)

  if (!request.stream) {
    const results = await together(work, generations, (generation) => generation.final())
    const choices = results.map(({ text, finishReason, logprobs }, index) => ({
      index,
      text,
      logprobs: logprobsOf(logprobs, 0),
      finish_reason: finishReason,
    }))
    response.json(textCompletion(head, choices, usageJson(results.map(({ usage }) => usage))))
    return
  }

  const sse = exchange.stream()
  const noUsage = request.includeUsage ? null : undefined
  const results = await together(work, generations, async (generation, index): Promise<GenerateResult> => {
    let offset = 0
    for await (const { text, logprobs } of generation) {
      const choice = { index, text, logprobs: logprobsOf(logprobs, offset), finish_reason: null }
      offset += text.length
      await sse.data(textCompletion(head, [choice], noUsage))
    }
    const result = await generation.final()
    const last = { index, text: '', logprobs: null, finish_reason: result.finishReason }
    await sse.data(textCompletion(head, [last], noUsage))
    return result
  })
  if (request.includeUsage) await sse.data(textCompletion(head, [], usageJson(results.map(({ usage }) => usage))))
  await sse.data('[DONE]')
  sse.end()
}
