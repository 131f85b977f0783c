/**
 * Tool routing: every reply of a routed turn is one of a closed set of actions, the tools on offer and "no tool calls
 * needed".
 *
 * @module tinyllm-engine/routing
 */
export {
  BackendSettings,
  ROUTE_SCHEMA_NAME,
  canRoute,
  routedBackend,
  routingCap,
  type AgentMessage,
  type AgentToolCall,
  type Backend,
  type Completion,
  type CompletionRequest,
  type RoutableBackend,
  type SettingsValues,
} from './backend.js'
export { NO_TOOL, RouteCatalogueError, type JsonSchema, type RouteTool } from './catalogue.js'
export { engineBackend, type EngineBackendOptions } from './engine_backend.js'
export { route, type RouteOf, type RouteOptions } from './grammar.js'
export { BackendError, httpBackend, type HttpBackendOptions } from './http_backend.js'
export { DEFAULT_LIMITS, type LimitName, type LoopLimits } from './limits.js'
export {
  runToolLoop,
  type RoutingEnd,
  type ToolLoopEvent,
  type ToolLoopOptions,
  type ToolLoopResult,
  type ToolLoopRun,
} from './loop.js'
export { parseRoute, type ParsedRoute, type RouteFailure, type RoutedCall, type RoutedNone } from './parse.js'
export { type ToolOutcome, type ToolProvider } from './provider.js'
export {
  routedCallId,
  routedResultHeader,
  routedResultText,
  splitRoutedResult,
  type RoutedResultOptions,
} from './result.js'
export { routeChoices, routeSchema, routeToolNames, type RouteAlternative, type RouteSchema } from './schema.js'
