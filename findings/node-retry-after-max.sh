#!/usr/bin/env bash
# Guess: got, ky, undici's RetryAgent and axios-retry agree on a Retry-After that is longer than they may wait: they return
#   the 429, or they wait, but none sends the request again before that time.
# Seen, with Retry-After: 3600 and 2 retries: got returns the 429, for its timeout of 10 s as for a maxRetryAfter of 60 s.
# axios-retry returns it if the timeout is 10 s. ky shortens the wait to maxRetryAfter, sends after 60 s, and again; with
# its timeout of 10 s "including any retries" it waits for the hour, twice. undici sends after 30 s, its maxTimeout.
# It means: the option that sounds like a bound for patience is, in ky and undici, one for the API's.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund got@14.6.6 ky@1.14.3 undici@7.30.2 axios@1.21.1 axios-retry@4.5.0 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import http from 'node:http'
import {once} from 'node:events'
import FakeTimers from '@sinonjs/fake-timers'
import axios from 'axios'
import axiosRetry from 'axios-retry'
import got from 'got'
import ky from 'ky'
import {Agent, RetryAgent, request} from 'undici'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
let sent, begin
const seconds = () => Math.floor((Date.now() - begin) / 1000)
const server = http.createServer((req, res) => {
	sent.push(seconds())
	res.writeHead(429, {'retry-after': '3600', connection: 'close'}).end('{}')
}).listen(0, '127.0.0.1')
await once(server, 'listening')
const url = `http://127.0.0.1:${server.address().port}/`
axiosRetry(axios, {retries: 2})
for (const [name, get, want] of [
	['got 14.6.6, timeout 10 s', () => got(url, {timeout: {request: 10_000}, retry: {limit: 2}}), [0]],
	['got 14.6.6, maxRetryAfter 60 s', () => got(url, {retry: {limit: 2, maxRetryAfter: 60_000}}), [0]],
	['axios-retry 4.5.0, timeout 10 s', () => axios.get(url, {timeout: 10_000}), [0]],
	['axios-retry 4.5.0', () => axios.get(url), [0, 3600, 7200]],
	['ky 1.14.3, its timeout of 10 s', () => ky(url, {retry: {limit: 2}}), [0, 3600, 7200]],
	['ky 1.14.3, maxRetryAfter 60 s', () => ky(url, {retry: {limit: 2, maxRetryAfter: 60_000}}), [0, 60, 120]],
	['undici 7.30.2, RetryAgent', () => request(url, {dispatcher: new RetryAgent(new Agent(), {maxRetries: 2})}), [0, 30, 60]],
]) {
	sent = []
	begin = Date.now()
	const step = want.length > 1 ? want[1] / 60 : 1
	let end
	get().then(response => { end = response }, error => { end = error })
	for (let i = 0; i < 500 && !end; i++) {
		// Let the sockets do their work, then the clock.
		for (let j = 0; j < 40; j++) await new Promise(resolve => setImmediate(resolve))
		await clock.tickAsync(step * 1000)
	}
	console.log(`${name}: sent at ${sent.join(' ')} s, ends after ${seconds()} s: ${String(end?.message ?? end).slice(0, 40)}`)
	if (!end || sent.length !== want.length || sent.some((at, i) => at < want[i] || at > want[i] + 4 * i * step)) process.exit(1)
}
process.exit()
JS
timeout 55 node finding.mjs
