//go:build windows

package main

// Signals, process groups and unix sockets are part of how the program stops
// and how its demo runs, so it is not built for Windows: use WSL or a container.
func main() { processor_does_not_run_on_windows() }
