#!/usr/bin/env bash
# Guess: execEvenly of rate-limiter-flexible spreads calls evenly: 60 that come together, at 60 per minute, leave some one
#   second apart: "executed evenly over duration", its types say.
# Seen: 31 leave within the first 1.95 s, and 50 within 5 s. The first leaves immediately. Each other waits for the rest
# of the minute divided by the points that are left plus two, so the waits are 1/60, 1/59, 1/58 and so on of a minute,
# not their sum.
# It means: calls that come one by one are paced, and a burst of them is compressed, not spread.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund rate-limiter-flexible@11.4.0 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import {RateLimiterMemory} from 'rate-limiter-flexible'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
const limiter = new RateLimiterMemory({points: 60, duration: 60, execEvenly: true})
const begin = Date.now(), calls = []
for (let i = 0; i < 60; i++) limiter.consume('key').then(() => calls.push(Date.now() - begin))
await clock.tickAsync(60_000)
const within = ms => calls.filter(at => at < ms).length
console.log(`rate-limiter-flexible 11.4.0, execEvenly, 60 per minute: ${within(1950)} of ${calls.length} within 1.95 s, ` +
	`${within(5001)} within 5 s, the last at ${calls.at(-1)} ms`)
process.exit(calls.length === 60 && within(1950) === 31 && within(5001) === 50 ? 0 : 1)
JS
timeout 30 node finding.mjs
