#!/usr/bin/env bash
# Guess: a consume that rate-limiter-flexible refuses takes nothing: with 3 of 10 points left a refused 5 leaves 3 for
#   smaller calls. In two processes with a RateLimiterQueue on one key, calls of 6 and of 1 fill each second: 6 + 4.
# Seen: a refused 5 takes the 3, too: a call of 1 after it waits for the next period. A queue's head asks for its points
# at the start of a period, and again as soon as the first has left: the calls of 6 use 6 points per second, and those of 1
# never leave while they last. With the store in Redis chance decides which of the two loses.
# It means: with costs that differ, as tokens of a model do, a waiting call blocks the other processes without leaving itself.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund rate-limiter-flexible@11.4.0 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import {RateLimiterMemory, RateLimiterQueue} from 'rate-limiter-flexible'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})
const minute = new RateLimiterMemory({points: 10, duration: 60})
await minute.consume('key', 7)
const results = []
for (const points of [5, 1]) await minute.consume('key', points).then(() => results.push(`${points} passes`), () => results.push(`${points} is refused`))
console.log(`rate-limiter-flexible 11.4.0, 3 of 10 points left: ${results.join(', ')}`)

const shared = new RateLimiterMemory({points: 10, duration: 1}) // as two processes share it in Redis
const large = new RateLimiterQueue(shared), small = new RateLimiterQueue(shared)
let sixes = 0, ones = 0
for (let i = 0; i < 20; i++) large.removeTokens(6).then(() => sixes++)
for (let i = 0; i < 20; i++) small.removeTokens(1).then(() => ones++)
await clock.tickAsync(10_500)
console.log(`10 per second, after 10.5 s: ${sixes} calls of 6, ${ones} calls of 1, of 20 each`)
process.exit(results.join() === '5 is refused,1 is refused' && sixes === 11 && ones === 0 ? 0 : 1)
JS
timeout 30 node finding.mjs
