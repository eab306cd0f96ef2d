package main

import "syscall"

// The kernel ends the server with this program, however that ends.
func init() { ofChildren.Pdeathsig = syscall.SIGQUIT }
