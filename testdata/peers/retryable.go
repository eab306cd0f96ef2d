package main

import (
	"net/http"

	"github.com/hashicorp/go-retryablehttp"
)

// retryable paces nothing. It shows the cost of another popular RoundTripper.
func retryable() contender {
	return contender{
		name: "retryablehttp",
		peer: true,
		wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			c := retryablehttp.NewClient()
			c.HTTPClient = &http.Client{Transport: base}
			c.RetryMax = 0
			c.Logger = nil
			return &retryablehttp.RoundTripper{Client: c}, nil
		},
	}
}
