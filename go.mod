module github.com/dripfeed/dripfeed

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	golang.org/x/time v0.16.0
)

require (
	github.com/dunglas/httpsfv v1.1.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
