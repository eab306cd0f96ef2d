#!/usr/bin/env bash
# Guess: a limiter of a Bottleneck.Group is dropped when it is idle, which is when its limit is full again: a key keeps its
#   reservoir of 10 per hour, and jobs that wait for the next hour run then.
# Seen: the group drops a key after 5 minutes without a call, its default timeout, whatever the refresh interval. The next
# call finds a new reservoir: 60 calls in an hour. Jobs that waited never run: of 30, 10 run, and 20 promises stay
# pending for ever. The same limiter without a group runs 10 in each hour.
# It means: the timeout of a group must be longer than the refresh interval, or the limit and the jobs are lost.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
echo '{"type": "module"}' >package.json
timeout 150 npm install --silent --ignore-scripts --no-audit --no-fund bottleneck@2.19.5 @sinonjs/fake-timers@15.5.0
cat >finding.mjs <<'JS'
import FakeTimers from '@sinonjs/fake-timers'
import Bottleneck from 'bottleneck'

const minute = 60_000, hour = 60 * minute
const options = {reservoir: 10, reservoirRefreshAmount: 10, reservoirRefreshInterval: hour}
const clock = FakeTimers.install({toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date']})

const group = new Bottleneck.Group(options)
let calls = 0
for (let burst = 0; burst < 6; burst++) {
	for (let i = 0; i < 10; i++) group.key('tenant').schedule(async () => calls++)
	await clock.tickAsync(9.5 * minute)
}
console.log(`bottleneck 2.19.5, Group with 10 per hour, 10 calls each 9.5 minutes: ${calls} calls in 57 minutes`)

const ran = {}, settled = {}
for (const [name, limiter] of [['of a group', new Bottleneck.Group(options).key('tenant')], ['without a group', new Bottleneck(options)]]) {
	ran[name] = settled[name] = 0
	for (let i = 0; i < 30; i++) limiter.schedule(async () => ran[name]++).catch(() => {}).finally(() => settled[name]++)
}
await clock.tickAsync(24 * hour)
for (const name in ran) console.log(`limiter ${name}, 30 jobs, a day later: ${ran[name]} ran, ${30 - settled[name]} are pending`)
const seen = [calls, ran['of a group'], settled['of a group'], ran['without a group']].join()
process.exit(seen === '60,10,10,30' ? 0 : 1)
JS
timeout 30 node finding.mjs
