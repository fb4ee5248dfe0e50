//go:build !linux

package bench

func machineCPU() float64 { return 0 }

func loadAverage() string { return "" }
