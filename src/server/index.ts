export type { Clock } from './sse.js'
export { createServer, type CloseOptions, type ListenOptions, type Server, type ServerOptions } from './server.js'
