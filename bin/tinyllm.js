#!/usr/bin/env node
'use strict'

try {
  require('../dist/cli/index.cjs')
} catch (error) {
  if (error.code !== 'MODULE_NOT_FOUND' || !String(error.message).includes('dist')) throw error
  console.error('tinyllm is not built here: run "npm start" or "npm run build" in its folder first')
  process.exitCode = 1
}
