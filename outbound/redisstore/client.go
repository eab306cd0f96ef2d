package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Client is what a [Store] asks of its client. Those of go-redis are Clients: of one server, of
// Sentinel, of a Ring and of a Cluster. [Do] makes one of any other library.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Do is a [Client] that sends commands by any library. It sends all of them together if it can. It
// returns a reply for each, in their order: a string, a []byte, an int64, nil, a []any of these, or
// an error. What the server has answered as an error is an [Error]. With any other error, as of a
// connection, the server may have carried the command out. Do returns soon after ctx ends, and
// sends no command twice.
//
// A command is EVALSHA or EVAL, a script, "1", a key, and arguments. For a Cluster Do finds the
// node that has the key, and follows MOVED and ASK.
type Do func(ctx context.Context, commands [][]string) (replies []any)

// Error is an error that a server has answered, such as "NOSCRIPT No matching script."
type Error string

func (e Error) Error() string { return string(e) }

// RedisError marks the errors of a server, in go-redis too.
func (Error) RedisError() {}

// errReplies is the error of the commands of a Do that breaks its contract.
var errReplies = errors.New("redisstore: wrong number of replies: Do returns one for each command")

// Process implements [Client].
func (do Do) Process(ctx context.Context, cmd redis.Cmder) error {
	do.process(ctx, []redis.Cmder{cmd})
	return cmd.Err()
}

// Pipeline implements [Client]. Only the methods Process and Exec work.
func (do Do) Pipeline() redis.Pipeliner { return &pipeline{do: do} }

type pipeline struct {
	redis.Pipeliner // nil
	do              Do
	cmds            []redis.Cmder
}

func (p *pipeline) Process(_ context.Context, cmd redis.Cmder) error {
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	p.do.process(ctx, p.cmds)
	return p.cmds, nil
}

func (do Do) process(ctx context.Context, cmds []redis.Cmder) {
	commands := make([][]string, len(cmds))
	for i, cmd := range cmds {
		for _, arg := range cmd.Args() {
			commands[i] = append(commands[i], fmt.Sprint(asText(arg)))
		}
	}
	replies := do(ctx, commands)
	for i, cmd := range cmds {
		set, ok := cmd.(interface{ SetVal(any) })
		if !ok || len(replies) != len(cmds) {
			cmd.SetErr(errReplies)
		} else if err, failed := replies[i].(error); failed {
			cmd.SetErr(err)
		} else {
			set.SetVal(asText(replies[i]))
		}
	}
}

// asText returns a reply as go-redis has it: libraries differ in how they return a text.
func asText(reply any) any {
	switch v := reply.(type) {
	case []byte:
		return string(v)
	case []any:
		for i := range v {
			v[i] = asText(v[i])
		}
	}
	return reply
}
