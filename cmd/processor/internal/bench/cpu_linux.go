package bench

import (
	"os"
	"strconv"
	"strings"
)

// machineCPU is user and system time of the whole machine in seconds, since boot;
// 0 where the system does not say.
func machineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks float64
	for i, f := range strings.Fields(line) {
		if i == 1 || i == 2 || i == 3 || i == 6 || i == 7 { // user, nice, system, irq, softirq
			n, _ := strconv.ParseFloat(f, 64)
			ticks += n
		}
	}
	return ticks / 100 // USER_HZ
}

// LoadAverage is the system's, over 1, 5 and 15 minutes; empty where it does not say.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(text))
	return strings.Join(f[:min(3, len(f))], " ")
}
