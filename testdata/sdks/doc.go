// Package sdks tries SDKs of other people's APIs above dripfeed's transport, against
// servers of its own. It is a module of its own, so that nobody who uses dripfeed
// downloads them. Its interceptors for gRPC are to be copied.
package sdks
