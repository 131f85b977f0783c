/** Several answers to one request. */
import { type Engine, type GenerateResult, regex } from '../../src/index.js'
import { loadTiny } from './tiny.js'

let engine: Engine

beforeAll(async () => {
  engine = await loadTiny()
}, 600_000)

afterAll(async () => {
  await engine.close()
})

const prompt = Uint32Array.from({ length: 75 }, (_, i) => (i * 37) % 250)

function comparable({ text, tokens, finishReason, logprobs }: GenerateResult) {
  return { text, tokens, finishReason, logprobs }
}

test.each([
  ['free', {}],
  ['with log-probabilities and penalties', { logprobs: 2, presencePenalty: 0.5, repetitionPenalty: 1.2 }],
  ['under a grammar that forces its beginning', { grammar: regex('answer: [a-z ]{3,30}\\.') }],
])('each is the answer to the request alone with its seed: %s', async (_, members) => {
  const request = { prompt, maxTokens: 24, temperature: 1.3, seed: 40, ...members }
  const choices = await Promise.all(engine.streamChoices(request, 4).map((choice) => choice.final()))
  expect(new Set(choices.map(({ text }) => text)).size).toBeGreaterThan(1)
  for (const [i, choice] of choices.entries()) {
    const alone = await engine.generate({ ...request, seed: 40 + i })
    expect(comparable(choice)).toEqual(comparable(alone))
  }
})

test('their prompt is computed once', async () => {
  const fresh = await loadTiny()
  const request = { prompt, maxTokens: 10, ignoreEos: true, temperature: 1 }
  const choices = await Promise.all(fresh.streamChoices(request, 5).map((choice) => choice.final()))
  expect(choices.map(({ usage }) => usage.cachedTokens)).toEqual([0, 75, 75, 75, 75])
  expect(fresh.stats().forwardTokens).toBe(75 + 5 * 9)
  await fresh.close()
})

test('one can be left while the others go on, and a signal ends all', async () => {
  const request = { prompt, maxTokens: 20, ignoreEos: true, temperature: 1 }
  const [first, second, third] = engine.streamChoices(request, 3)
  first?.cancel()
  await expect(first?.final()).rejects.toMatchObject({ code: 'ERR_TINYLLM_ABORTED' })
  expect((await second?.final())?.tokens).toHaveLength(20)
  expect((await third?.final())?.tokens).toHaveLength(20)
  const controller = new AbortController()
  const all = engine.streamChoices({ ...request, maxTokens: 4000, signal: controller.signal }, 3)
  const ended = all.map((choice) => expect(choice.final()).rejects.toMatchObject({ code: 'ERR_TINYLLM_ABORTED' }))
  controller.abort()
  await Promise.all(ended)
})

test('what is wrong with the request is told by every choice, and a wrong count at once', async () => {
  for (const choice of engine.streamChoices({ prompt, temperature: -1 }, 2)) {
    await expect(choice.final()).rejects.toMatchObject({ details: { param: 'temperature' } })
  }
  for (const count of [0, 1.5, 129]) {
    expect(() => engine.streamChoices({ prompt }, count)).toThrow(/from 1 to 128/)
  }
})
