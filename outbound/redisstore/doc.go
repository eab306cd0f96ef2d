// Package redisstore keeps buckets in Redis, for all processes of a fleet.
package redisstore
