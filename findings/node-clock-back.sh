#!/usr/bin/env bash
# Guess: limiters of Node measure time by a clock that no one sets, as Go's time.Since does. If the system's clock is set
#   back or forward by an hour, 10 per second stays 10 per second, or is off by a second at most.
# Seen: with a clock set back by an hour p-queue, p-throttle (strict or not), Bottleneck's reservoir and minTime, and
# rate-limiter-flexible's queue start nothing for that hour. Set forward, all but minTime let 20 leave within 0.6 s, with
# strict, too. Only limiter keeps its limit both ways.
# It means: the first step of NTP after a start, or a virtual machine that wakes up, stops these queues or doubles their limit.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 100 npm install --silent --ignore-scripts --no-audit --no-fund p-queue@10.0.0 p-throttle@8.1.0 bottleneck@2.19.5 \
	limiter@4.1.0 rate-limiter-flexible@11.4.0 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'

const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance', 'hrtime']})
const {default: PQueue} = await import('p-queue')
const {default: pThrottle} = await import('p-throttle')
const {default: Bottleneck} = await import('bottleneck')
const {RateLimiter} = await import('limiter')
const {RateLimiterMemory, RateLimiterQueue} = await import('rate-limiter-flexible')

function queue(strict) { const q = new PQueue({interval: 1000, intervalCap: 10, strict}); return call => q.add(call) }
function bottleneck(options) { const b = new Bottleneck(options); return call => b.schedule(async () => call()) }
function removing(limiter) { return call => limiter.removeTokens(1).then(call) }
const makers = {
	'p-queue 10.0.0': () => queue(false),
	'p-queue 10.0.0, strict': () => queue(true),
	'p-throttle 8.1.0': () => pThrottle({limit: 10, interval: 1000})(call => call()),
	'p-throttle 8.1.0, strict': () => pThrottle({limit: 10, interval: 1000, strict: true})(call => call()),
	'bottleneck 2.19.5, reservoir': () => bottleneck({reservoir: 10, reservoirRefreshAmount: 10, reservoirRefreshInterval: 1000}),
	'bottleneck 2.19.5, minTime': () => bottleneck({minTime: 100}),
	'rate-limiter-flexible 11.4.0, queue': () => removing(new RateLimiterQueue(new RateLimiterMemory({points: 10, duration: 1}))),
	'limiter 4.1.0': () => removing(new RateLimiter({tokensPerInterval: 10, interval: 1000})),
}
let wrong = 0
for (const [name, make] of Object.entries(makers)) {
	async function waits(step) {
		const send = make(), begin = performance.now(), calls = []
		const call = () => calls.push(performance.now() - begin)
		for (let i = 0; i < 10; i++) send(call)
		await clock.tickAsync(200)
		clock.setSystemTime(Date.now() + step)
		for (let i = 0; i < 15; i++) send(call)
		await clock.tickAsync(2 * 3_600_000)
		return {early: calls.filter(at => at < 600).length, last: Math.round(calls.at(-1) / 1000)}
	}
	const back = await waits(-3_600_000), forward = await waits(3_600_000)
	console.log(`${name}: back an hour: the last of 25 after ${back.last} s; forward: ${forward.early} within 0.6 s`)
	const sound = name.startsWith('limiter')
	if (sound !== back.last < 10 || back.early > 10 || (forward.early === 20) !== !(sound || name.includes('minTime'))) wrong++
}
process.exit(wrong === 0 ? 0 : 1)
JS
timeout 60 node finding.mjs
