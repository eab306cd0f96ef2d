#!/usr/bin/env bash
# Guess: aborting p-throttle's signal rejects the calls that wait, as its readme says. The calls that have left still
#   count: with strict and 10 per minute, no 11th leaves within the minute.
# Seen: the abort forgets the window, with strict, too. Ten calls leave, the waiting ones are aborted after a second, and
# ten more leave a second later: 20 in 2 s. The function still works with the aborted signal.
# It means: a program that aborts what waits, as after a refusal, sends a second burst into the same window.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund p-throttle@8.1.1 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import pThrottle from 'p-throttle'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance']})
for (const abort of [false, true]) {
	const controller = new AbortController(), calls = [], begin = Date.now()
	const call = pThrottle({limit: 10, interval: 60_000, strict: true, signal: controller.signal})(async () => calls.push(Date.now() - begin))
	for (let i = 0; i < 15; i++) call().catch(() => {})
	await clock.tickAsync(1000)
	if (abort) controller.abort()
	await clock.tickAsync(1000)
	for (let i = 0; i < 10; i++) call().catch(() => {})
	await clock.tickAsync(50_000)
	console.log(`p-throttle 8.1.1, strict, 10 per minute, abort ${abort}: ${calls.length} calls in 52 s, at ${calls.join(' ')} ms`)
	if (calls.length !== (abort ? 20 : 10)) process.exit(1)
	await clock.tickAsync(300_000)
}
process.exit()
JS
timeout 30 node finding.mjs
