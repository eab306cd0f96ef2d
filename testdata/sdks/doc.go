// Package sdks tests SDKs of other people's APIs above dripfeed's transport, against
// servers of its own. It is a module of its own, so that dripfeed's users do not
// download the SDKs.
package sdks
