package bench

import (
	"fmt"
	"os"
	"runtime/pprof"
	"syscall"
)

// startProfile writes a CPU profile until the returned function is called.
func startProfile(file string) (end func(), err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a profile that is cut short is seen when it is read
	}, nil
}

// processCPU is user and system time of this process in seconds.
func processCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return seconds(u.Utime) + seconds(u.Stime)
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
