/**
 * The check of a call's arguments against the tool's own parameters.
 *
 * In process the grammar has made it already; a remote server may have dropped the schema without a word, and then this
 * is what stands between a model's guess and the tool.
 */
import { Ajv, type Options, type ValidateFunction } from 'ajv'
import { Ajv2019 } from 'ajv/dist/2019.js'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { RouteCatalogueError, type CheckedTool, type JsonSchema } from './catalogue.js'

// Schemas come from tool providers: unknown keywords are theirs to have.
const OPTIONS: Options = { strict: false, allErrors: false, logger: false }

/** Compiled validators by the text of the schema, so that a catalogue read again each round is compiled once. */
export class ArgumentChecks {
  readonly #compiled = new Map<string, ValidateFunction>()

  /**
   * Compiles the parameters of a catalogue.
   *
   * @throws {RouteCatalogueError} naming the tool whose schema is not one
   */
  prepare(tools: readonly CheckedTool[]): void {
    const wanted = new Map<string, ValidateFunction>()
    tools.forEach(({ parameters }, index) => {
      if (parameters === undefined) return
      const text = JSON.stringify(parameters)
      wanted.set(text, this.#compiled.get(text) ?? compile(parameters, index))
    })
    this.#compiled.clear()
    for (const [text, check] of wanted) this.#compiled.set(text, check)
  }

  /** What is wrong with a call's arguments, or undefined. */
  problem(tool: CheckedTool, args: unknown): string | undefined {
    if (tool.parameters === undefined) {
      const key = Object.keys(args as object)[0]
      return key === undefined ? undefined : `${tool.name} takes no arguments`
    }
    const check = this.#compiled.get(JSON.stringify(tool.parameters))
    if (check === undefined || check(args)) return undefined
    const [error] = check.errors ?? []
    const where = error?.instancePath === '' ? '' : `${error?.instancePath} `
    return `the arguments of ${tool.name} do not fit its parameters: ${where}${error?.message ?? 'refused'}`
  }
}

function compile(parameters: JsonSchema, index: number): ValidateFunction {
  const dialect = typeof parameters.$schema === 'string' ? parameters.$schema : ''
  // One instance a schema: instances keep schemas by their $id, and two tools may use the same one.
  const ajv = dialect.includes('2019-09')
    ? new Ajv2019(OPTIONS)
    : dialect.includes('draft-07') || dialect.includes('draft-06')
      ? new Ajv(OPTIONS)
      : new Ajv2020(OPTIONS)
  addFormats.default(ajv)
  try {
    return ajv.compile(parameters)
  } catch (cause) {
    throw new RouteCatalogueError(
      index,
      `function.parameters is no JSON Schema: ${cause instanceof Error ? cause.message : String(cause)}`,
    )
  }
}
