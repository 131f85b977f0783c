#!/usr/bin/env node
'use strict'

const { existsSync } = require('node:fs')
const { join } = require('node:path')

const cli = join(__dirname, '..', 'dist', 'cli', 'index.cjs')
if (existsSync(cli)) require(cli)
else {
  console.error('tinyllm is not built here: run "npm start" or "npm run build" in its folder first')
  process.exitCode = 1
}
