#!/usr/bin/env bash
# Guess: a queue of BullMQ with setGlobalRateLimit(10, 10_000), and a worker with the stricter-looking limiter
#   {max: 5, duration: 500} for its own bursts, keeps both: at most 10 jobs in 10 s. "If you choose a rate limit level in your
#   workers, it won't override the global one", its guide says.
# Seen: 20 per second, twice the worker's limit and 20 times the queue's. One counter serves both: its max is the queue's,
# its duration the worker's, so the limit is 10 per 500 ms. The other way around, a worker's {max: 100, duration: 10_000}
# makes 10 per 10 s of the queue's 10 per 500 ms.
# It means: only one of the two can be set, and a limit per second next to one per minute is not to be had from them.
# Needs redis-server.
set -euo pipefail
dir=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' >/dev/null &
server=$!
echo '{"type": "module"}' >package.json
timeout 100 npm install --silent --ignore-scripts --no-audit --no-fund bullmq@6.7.0 ioredis@6.0.0
cat >finding.mjs <<'JS'
import {Queue, Worker} from 'bullmq'

const connection = {path: 'redis.sock'}
async function starts(name, global, limiter) {
	const queue = new Queue(name, {connection}), calls = []
	if (global) await queue.setGlobalRateLimit(global.max, global.duration)
	await queue.addBulk(Array.from({length: 200}, () => ({name: 'call', data: {}})))
	const worker = new Worker(name, async () => { calls.push(Date.now()) }, {connection, limiter})
	await new Promise(wake => setTimeout(wake, 4000))
	const n = calls.filter(at => at < calls[0] + 3000).length
	console.log(`bullmq 6.7.0, queue ${JSON.stringify(global)}, worker ${JSON.stringify(limiter)}: ${n} jobs in 3 s`)
	await worker.close()
	await queue.close()
	return n
}
const queueOnly = await starts('a', {max: 10, duration: 10_000})
const workerOnly = await starts('b', undefined, {max: 5, duration: 500})
const both = await starts('c', {max: 10, duration: 10_000}, {max: 5, duration: 500})
const slower = await starts('d', {max: 10, duration: 500}, {max: 100, duration: 10_000})
process.exit(queueOnly === 10 && workerOnly <= 35 && both >= 45 && both <= 70 && slower === 10 ? 0 : 1)
JS
timeout 60 node finding.mjs
