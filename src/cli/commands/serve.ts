/** `tinyllm serve`: the OpenAI-compatible server over one model. */
import { existsSync } from 'node:fs'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { type Command, Option } from 'commander'
import { pino } from 'pino'
import { version } from '../../../package.json'
import { InvalidRequestError } from '../../errors.js'
import { profiles } from '../../openai/profile.js'
import type { ServerOptions } from '../../server/index.js'
import { openEngine } from '../model.js'
import { addModelOptions, collect, integer, type ModelOptions } from '../options.js'
import { type Terminal, write } from '../terminal.js'

interface ServeOptions extends ModelOptions {
  readonly port: number
  readonly host: string
  readonly parallel: number
  readonly maxQueue: number
  readonly alias?: string
  readonly apiKey?: string
  readonly profile: NonNullable<ServerOptions['profile']>
  readonly cors?: string[]
  readonly logLevel: string
}

const levels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']

export function addServe(program: Command, terminal: Terminal): void {
  const command = program.command('serve').description('serve a model over an OpenAI-compatible API')
  addModelOptions(command)
    .option('-p, --port <port>', '0 takes a free one', integer(0, 65_535), 8080)
    .option('--host <address>', 'where to listen; 0.0.0.0 is every network', '127.0.0.1')
    .option('--parallel <count>', 'requests that are answered at the same time', integer(1, 1024), 32)
    .option('--max-queue <count>', 'requests that may wait; one more is answered 429', integer(0, 65_536), 256)
    .option('--alias <name>', 'the model’s id in the API (default: its name)')
    .addOption(new Option('--api-key <key>', 'asked for as a bearer token').env('TINYLLM_API_KEY'))
    .addOption(
      new Option('--profile <name>', 'what of the API is served').choices(Object.keys(profiles)).default('full'),
    )
    .option('--cors <origin>', 'let pages of this origin read answers ("*": any); may be given several times', collect)
    .addOption(new Option('--log-level <level>', 'what is logged, to standard error').choices(levels).default('info'))
    .action(async (options: ServeOptions) => {
      const { engine, name } = await openEngine(options, terminal, { parallel: options.parallel })
      try {
        const { createServer } = await import('../../server/index.js')
        const folder = docsFolder()
        const server = createServer({
          engine,
          version,
          profile: options.profile,
          parallel: options.parallel,
          maxQueue: options.maxQueue,
          alias: options.alias ?? name,
          logger: pino({ level: options.logLevel }, terminal.stderr),
          ...(options.apiKey !== undefined && { apiKey: options.apiKey }),
          ...(options.cors && { cors: options.cors.includes('*') ? true : options.cors }),
          ...(folder !== undefined && { docsFolder: folder }),
        })
        const { url } = await server.listen({ port: options.port, host: options.host }).catch(explainListen(options))
        await write(terminal.stdout, `tinyllm serves ${options.alias ?? name} at ${url}/v1\n`)
        if (!terminal.signal.aborted) await once(terminal.signal, 'abort')
        await write(terminal.stdout, 'stopping: running requests are finished first\n')
        await server.close()
      } finally {
        await engine.close()
      }
    })
}

/** swagger-ui's files, which the build puts into dist/; running from the sources there are none. */
function docsFolder(): string | undefined {
  const folder = fileURLToPath(new URL('../../swagger-ui', import.meta.url))
  return existsSync(folder) ? folder : undefined
}

function explainListen({ host, port }: ServeOptions): (error: unknown) => never {
  return (error) => {
    const { code, message } = error as NodeJS.ErrnoException
    const why =
      code === 'EADDRINUSE'
        ? 'the port is taken; choose another with --port'
        : code === 'EACCES'
          ? 'the system does not allow it; choose a port above 1023'
          : message
    throw new InvalidRequestError(`cannot listen on ${host}:${port}: ${why}`, { cause: error })
  }
}
