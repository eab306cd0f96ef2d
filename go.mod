module github.com/dripfeed/dripfeed

go 1.26.0
