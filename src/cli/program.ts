/** The command line: its commands, and how an error becomes an exit code. */
import { Command, CommanderError } from 'commander'
import { version } from '../../package.json'
import { addChat } from './commands/chat.js'
import { addGenerate } from './commands/generate.js'
import { addGrammar } from './commands/grammar.js'
import { addInspect } from './commands/inspect.js'
import { addModels } from './commands/models.js'
import { addPull } from './commands/pull.js'
import { addRoute } from './commands/route.js'
import { addServe } from './commands/serve.js'
import { describeFailure, EXIT } from './failure.js'
import type { Terminal } from './terminal.js'

/** Runs one command line (without `node` and the script) and returns the exit code. */
export async function runCli(args: readonly string[], terminal: Terminal): Promise<number> {
  let exitCode: number = EXIT.ok
  const setExitCode = (code: number): void => {
    exitCode = code
  }
  const program = new Command('tinyllm')
    .description('small language models, with output that is guaranteed to follow a grammar')
    .version(version)
    .exitOverride()
    .configureOutput({
      writeOut: (text) => terminal.stdout.write(text),
      writeErr: (text) => terminal.stderr.write(text.replace(/^error: /, 'tinyllm: ')),
    })
    .showSuggestionAfterError()
  addServe(program, terminal)
  addGenerate(program, terminal, setExitCode)
  addRoute(program, terminal, setExitCode)
  addChat(program, terminal)
  addPull(program, terminal)
  addModels(program, terminal)
  addInspect(program, terminal)
  addGrammar(program, terminal)
  for (const command of program.commands) command.copyInheritedSettings(program)
  try {
    await program.parseAsync(args, { from: 'user' })
    return exitCode
  } catch (error) {
    // commander has already written its message.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.ok : EXIT.usage
    if (terminal.signal.aborted) return EXIT.interrupted
    terminal.stderr.write(describeFailure(error))
    return EXIT.failure
  }
}
