/**
 * Profiles: what of the OpenAI surface a server serves, as values. The code that validates, builds grammars and
 * writes answers asks the profile instead of comparing names, so that a third profile is a third value.
 */

export interface Profile {
  readonly name: 'full' | 'openai-subset.v1'
  /** The schema front end that tools' parameters and answers go through. */
  readonly subset: 'strict' | 'general'
  /** JSON objects and schemas in the form that any double can hold. */
  readonly finite: boolean
  readonly maxTools: number
  /** Most calls of one answer under `required`, with parallel calls. */
  readonly maxCalls: number
  /** Most calls of one answer under `auto`, with parallel calls. */
  readonly maxAutoCalls: number
  /** Most choices (`n`) of one request. */
  readonly maxChoices: number
  /** Serves `response_format: json_schema`. */
  readonly jsonSchema: boolean
  /** Knows the member `strict` of a tool (schemas are enforced with or without it). */
  readonly toolStrict: boolean
  /** Serves `tool_choice: allowed_tools`. */
  readonly allowedTools: boolean
  /** In auto mode a JSON answer may stand beside calls; otherwise `json_object` is ignored when tools are there. */
  readonly answerBesideTools: boolean
  /** Reads message content given as text parts. */
  readonly contentParts: boolean
  /** `finish_reason` of an answer whose last call the token budget cut. */
  readonly cutCall: 'tool_calls' | 'length'
  /** Optional request fields this profile serves; one that is not listed is an unknown field. */
  readonly optionalFields: ReadonlySet<string>
  /** Fields that would change the answer: 422 by name on a route that does not serve them. */
  readonly refusedFields: ReadonlySet<string>
  /** Fields that describe the request and change nothing. */
  readonly metadataFields: ReadonlySet<string>
  /** Names the unknown fields in the response header `x-tinyllm-ignored`. */
  readonly reportIgnored: boolean
}

/** The course's subset, exactly. */
export const strictProfile: Profile = {
  name: 'openai-subset.v1',
  subset: 'strict',
  finite: false,
  maxTools: 128,
  maxCalls: 4,
  maxAutoCalls: 1,
  maxChoices: 1,
  jsonSchema: false,
  toolStrict: false,
  allowedTools: false,
  answerBesideTools: false,
  contentParts: false,
  cutCall: 'tool_calls',
  optionalFields: new Set(),
  refusedFields: new Set(),
  metadataFields: new Set(),
  reportIgnored: false,
}

/** Everything this server can do; the default. */
export const fullProfile: Profile = {
  name: 'full',
  subset: 'general',
  finite: true,
  maxTools: 128,
  maxCalls: 4,
  maxAutoCalls: 4,
  maxChoices: 128,
  jsonSchema: true,
  toolStrict: true,
  allowedTools: true,
  answerBesideTools: true,
  contentParts: true,
  cutCall: 'length',
  optionalFields: new Set(['logit_bias', 'close_within_budget']),
  refusedFields: new Set([
    'functions',
    'function_call',
    'prediction',
    'modalities',
    'audio',
    'web_search_options',
    'reasoning_effort',
    'verbosity',
    'best_of',
    'suffix',
    // On the completions route; the chat route serves them.
    'tools',
    'tool_choice',
    'response_format',
    // Constraints as other servers spell them: dropping one quietly would drop a guarantee.
    'grammar',
    'json_schema',
    'guided_json',
    'guided_regex',
    'guided_choice',
    'guided_grammar',
    'structured_outputs',
  ]),
  metadataFields: new Set(['store', 'metadata', 'service_tier', 'safety_identifier', 'prompt_cache_key']),
  reportIgnored: true,
}

export const profiles: Readonly<Record<Profile['name'], Profile>> = {
  full: fullProfile,
  'openai-subset.v1': strictProfile,
}
