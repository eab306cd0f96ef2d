package transport_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/estimate"
	"github.com/dripfeed/dripfeed/transport"
)

// A language model streams its answer, and the last event but one has the number of tokens. Until
// then the call is in flight.
func ExampleAtEnd() {
	bucket := outbound.Must(outbound.NewBucket("model",
		outbound.InFlight(20),
		outbound.PerMinute(500).Of(calls, "calls"),
		outbound.Window(28_500, time.Minute).Of(tokens, "tokens"), // 95 % of 30,000: see package estimate
	))
	const events = `data: {"text": "Drip "}

data: {"text": "feed."}

data: {"usage": {"total_tokens": 120}}

data: [DONE]

`
	average := estimate.Average{Bucket: bucket, First: outbound.Cost{tokens: 1_000}}
	known := outbound.Cost{calls: 1, tokens: 20} // the tokens of the question
	var charged outbound.Cost
	client := &http.Client{Transport: &transport.Transport{
		Base:    answering(200, events, "Content-Type", "text/event-stream"),
		Limiter: bucket,
		Cost:    func(*http.Request) outbound.Cost { return average.Cost(known) },
		OnResponse: func(resp *http.Response, p *outbound.Permit) {
			transport.AtEnd(resp, 256, func(tail []byte) {
				_, usage, _ := bytes.Cut(tail, []byte(`"total_tokens": `))
				var n float64
				if _, err := fmt.Sscan(string(usage), &n); err == nil {
					charged = outbound.Cost{calls: 1, tokens: n}
					p.Settle(charged)
					average.Learn(known, charged)
				}
			})
		},
	}}

	resp, err := client.Post("https://api.example.com/ask", "application/json", strings.NewReader(`{"stream": true}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close() // ends the call in flight if the program stops reading
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			fmt.Println(data)
		}
	}
	fmt.Printf("the call is charged %.0f tokens\n", charged[tokens])
	// Output:
	// {"text": "Drip "}
	// {"text": "feed."}
	// {"usage": {"total_tokens": 120}}
	// [DONE]
	// the call is charged 120 tokens
}
