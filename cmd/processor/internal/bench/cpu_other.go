//go:build !linux

package bench

func machineCPU() float64 { return 0 }

// LoadAverage is the system's, over 1, 5 and 15 minutes; empty where it does not say.
func LoadAverage() string { return "" }
