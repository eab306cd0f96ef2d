package outbound_test

import (
	"encoding/json"
	"fmt"

	"github.com/dripfeed/dripfeed/outbound"
)

// Limits come from a file of configuration, as text or as objects.
func ExampleParseLimit() {
	var config struct{ Limits []outbound.Limit }
	err := json.Unmarshal([]byte(`{"limits": [
		"10 per 1s",
		"5000 in any 1h",
		"10000 per day Europe/Berlin",
		{"n": 30000, "per": "1m", "burst": 3000, "unit": 1, "name": "tokens"}
	]}`), &config)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range config.Limits {
		fmt.Println(l)
	}
	_, err = outbound.ParseLimit("10 per day")
	fmt.Println(err)
	// Output:
	// 10 per 1s
	// 5000 in any 1h
	// 10000 per day Europe/Berlin
	// tokens (unit 1): 30000 per 1m, 3000 burst
	// outbound: invalid limit: "10 per day": a day needs its time zone, as in "10000 per day Europe/Berlin"
}
