package processor_test

import (
	"testing"

	"effectonce/internal/pgproxytest"
)

// The connection breaks while the pipeline's rows are written at the first start:
// a dependency that went away for a moment is waited for.
func TestTheFirstStartSurvivesABrokenConnection(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pgproxytest.Fault{
		"before COMMIT reached the server": pgproxytest.CutBeforeCommit,
		"behind":                           pgproxytest.CutAfterCommit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			proxy := w.through(t)
			proxy.Arm(fault, pgproxytest.Filter{SQL: "positions"})
			w.produce(t, "a", "b", "c")
			w.run(t, w.at(t, 3))
			<-proxy.Fired()
			w.exact(t, 3)
		})
	}
}
