import { Admission } from '../../src/server/admission.js'

const gone = new Error('gone')

test('requests run up to the bound, then wait their turn in order', async () => {
  const admission = new Admission({ running: 1, waiting: 2 })
  const order: string[] = []
  const first = await admission.enter(new AbortController())
  const enter = async (name: string) => {
    const lease = await admission.enter(new AbortController())
    order.push(name)
    lease[Symbol.dispose]()
  }
  const waiting = [enter('second'), enter('third')]
  await expect(admission.enter(new AbortController())).rejects.toMatchObject({ status: 429, retryAfter: 1 })
  expect(order).toEqual([])
  first[Symbol.dispose]()
  first[Symbol.dispose]()
  await Promise.all(waiting)
  expect(order).toEqual(['second', 'third'])
})

test('a client that goes away while it waits leaves the queue', async () => {
  const admission = new Admission({ running: 1, waiting: 1 })
  const first = await admission.enter(new AbortController())
  const leaver = new AbortController()
  const left = admission.enter(leaver)
  leaver.abort(gone)
  await expect(left).rejects.toBe(gone)
  const next = admission.enter(new AbortController())
  first[Symbol.dispose]()
  const lease = await next
  lease[Symbol.dispose]()
})

test('a client that has left already never runs', async () => {
  const admission = new Admission({ running: 1, waiting: 1 })
  const leaver = new AbortController()
  leaver.abort(gone)
  await expect(admission.enter(leaver)).rejects.toBe(gone)
  const lease = await admission.enter(new AbortController())
  lease[Symbol.dispose]()
})

test('closing waits for everybody inside and lets nobody else in', async () => {
  const admission = new Admission({ running: 2, waiting: 1 })
  const controller = new AbortController()
  const lease = await admission.enter(controller)
  const closed = admission.close()
  await expect(admission.enter(new AbortController())).rejects.toMatchObject({ status: 503 })
  admission.cut()
  expect(controller.signal.reason).toMatchObject({ status: 503 })
  lease[Symbol.dispose]()
  await closed
})
