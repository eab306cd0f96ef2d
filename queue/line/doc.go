// Package line lets jobs wait outside of the process: in the job system that they come from.
package line
