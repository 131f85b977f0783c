export type { TextEngine } from './answer.js'
export {
  chat,
  type ChatOptions,
  type ChatResponseFormat,
  type ChatResult,
  type ChatStream,
  type ChatToolChoice,
  type Message,
  streamChat,
} from './chat.js'
export type { FromJsonSchema } from './json_schema_type.js'
export { runTools, type RunToolsOptions, type RunToolsResult } from './run_tools.js'
export {
  type ArgumentsOf,
  type ExecuteContext,
  type RunnableTool,
  tool,
  type ToolDefinition,
  type ToolParameters,
  type TypedCall,
} from './tools.js'
