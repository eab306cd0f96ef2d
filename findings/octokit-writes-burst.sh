#!/usr/bin/env bash
# Guess: Octokit's throttling plugin, whose limiter of writes has a minTime of 1 s, lets POSTs reach GitHub a second apart,
#   also while other requests are slow.
# Seen: 10 POSTs within 30 ms. Each passes the limiter of writes on time, and then waits for one of the 10 slots of all
# requests. When 10 slow GETs end, all POSTs leave together.
# It means: a limit of a rate must be decided last, when a slot is free. Two limiters in a row keep only the second's limit.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund @octokit/core@7.0.8 @octokit/plugin-throttling@11.0.5 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import {Octokit} from '@octokit/core'
import {throttling} from '@octokit/plugin-throttling'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
for (const slow of [0, 10]) {
	const begin = Date.now(), posts = []
	const fetch = async (url, {method}) => {
		if (method === 'POST') posts.push(Date.now() - begin)
		await new Promise(resolve => setTimeout(resolve, method === 'GET' ? 30_000 : 100))
		return new Response('{}', {status: 200, headers: {'content-type': 'application/json'}})
	}
	const octokit = new (Octokit.plugin(throttling))({
		request: {fetch}, throttle: {id: `slow ${slow}`, onRateLimit() {}, onSecondaryRateLimit() {}},
	})
	for (let i = 0; i < slow; i++) octokit.request('GET /repos/o/r/tarball')
	await clock.tickAsync(1000)
	for (let i = 0; i < 10; i++) octokit.request('POST /repos/o/r/labels', {name: `${i}`})
	await clock.tickAsync(120_000)
	const span = posts.at(-1) - posts[0]
	console.log(`plugin-throttling 11.0.5, ${slow} slow GETs: ${posts.length} POSTs within ${span} ms, at ${posts.join(' ')}`)
	if (posts.length !== 10 || (slow === 0 ? span < 8900 : span > 100)) process.exit(1)
}
process.exit()
JS
timeout 30 node finding.mjs
