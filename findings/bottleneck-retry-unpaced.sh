#!/usr/bin/env bash
# Guess: a job that Bottleneck's "failed" event sends again, as its README recommends for errors of an API, passes the
#   limiter again: it waits for minTime and consumes from the reservoir.
# Seen: it does neither. With a reservoir of 2 and minTime of 10 s, 2 jobs that fail 5 times call the API 12 times, 100 ms
# apart. Only the first attempt is counted.
# It means: the limit holds until the API refuses or fails, and is multiplied by the attempts from then on.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund bottleneck@2.19.5 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import Bottleneck from 'bottleneck'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
const limiter = new Bottleneck({minTime: 10_000, reservoir: 2, maxConcurrent: 1})
limiter.on('failed', (error, info) => info.retryCount < 5 ? 100 : undefined)
const begin = Date.now(), calls = []
for (let i = 0; i < 3; i++) {
	limiter.schedule(async () => {
		calls.push(Date.now() - begin)
		throw new Error('503')
	}).catch(() => {})
}
await clock.tickAsync(100_000)
console.log(`bottleneck 2.19.5, reservoir 2, minTime 10 s, 5 retries: ${calls.length} calls, at ${calls.join(' ')} ms`)
const close = calls.filter((at, i) => i > 0 && at - calls[i - 1] < 200).length
process.exit(calls.length === 12 && close === 10 ? 0 : 1)
JS
timeout 30 node finding.mjs
