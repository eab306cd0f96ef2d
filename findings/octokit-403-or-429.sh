#!/usr/bin/env bash
# Guess: octokit, with its defaults, makes of GitHub's secondary limit the same whether GitHub refuses with 403 or with
#   429, as its docs say that it may: it waits for Retry-After and sends the request once more.
# Seen: after a 403 2 requests, 60 s apart. After a 429 8, at 0, 1, 5, 14, 74, 75, 79 and 88 s, POSTs, too: its retry
# plugin leaves out 403 but not 429, ignores Retry-After, and runs inside the throttling plugin. With the plugins in the
# other order they are 5, at 0, 60, 64, 68 and 72 s.
# It means: the client's limit and its retries are two layers that count by themselves; the order multiplies attempts.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund octokit@5.0.5 @octokit/core@7.0.8 @octokit/plugin-throttling@11.0.5 @octokit/plugin-retry@8.1.1 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import {Octokit as Core} from '@octokit/core'
import {retry} from '@octokit/plugin-retry'
import {throttling} from '@octokit/plugin-throttling'
import {Octokit} from 'octokit'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
const onSecondaryRateLimit = (retryAfter, options) => options.request.retryCount === 0
const log = {debug() {}, info() {}, warn() {}, error() {}}
for (const [name, make, status, method, want] of [
	['octokit 5.0.5', Octokit, 403, 'POST', '0 60'],
	['octokit 5.0.5', Octokit, 429, 'GET', '0 1 5 14 74 75 79 88'],
	['octokit 5.0.5', Octokit, 429, 'POST', '0 1 5 14 74 75 79 88'],
	['plugin(throttling, retry)', Core.plugin(throttling, retry).defaults({throttle: {onRateLimit() {}, onSecondaryRateLimit}}), 429, 'POST', '0 60 64 68 72'],
]) {
	const begin = Date.now(), sent = []
	const fetch = async () => {
		sent.push(Math.round((Date.now() - begin) / 1000))
		return new Response('{"message": "You have exceeded a secondary rate limit."}',
			{status, headers: {'content-type': 'application/json', 'retry-after': '60'}})
	}
	new make({request: {fetch}, log}).request(`${method} /repos/o/r/labels`, {name: 'x'}).catch(() => {})
	for (let i = 0; i < 600; i++) await clock.tickAsync(1000)
	console.log(`${name}, ${method}, ${status} with Retry-After: 60: sent at ${sent.join(' ')} s`)
	if (sent.join(' ') !== want) process.exit(1)
}
process.exit()
JS
timeout 30 node finding.mjs
