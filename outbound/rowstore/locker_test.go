package rowstore_test

import (
	"testing"

	"github.com/dripfeed/dripfeed/outbound/rowstore"
	"github.com/dripfeed/dripfeed/outbound/rowstore/rowstest"
)

// The table of the tests, whose rows can be locked, conforms, and a store passes the conformance test
// on it, with faults.
func TestConformance_WithFaults(t *testing.T) {
	rows := rowstore.NewTable()
	rowstest.TestRows(t, func(*testing.T) rowstore.Rows { return rows })
}
