//go:build mutant

package mutant

import "os"

// The safeguards that can be switched off, by the variable EFFECTONCE_MUTANT.
var (
	NoFence         = os.Getenv("EFFECTONCE_MUTANT") == "no-fence"
	LearnEarly      = os.Getenv("EFFECTONCE_MUTANT") == "learn-early"
	LearnBlind      = os.Getenv("EFFECTONCE_MUTANT") == "learn-blind"
	IgnoreOvertaken = os.Getenv("EFFECTONCE_MUTANT") == "ignore-overtaken"
)
