package model

import "slices"

// Safeguard is a rule of the protocol that a World can be without, to see what it
// is for.
type Safeguard string

// The commit.
const (
	FenceOwner     Safeguard = "the fence compares the owner"
	FenceNext      Safeguard = "the fence compares next_offset"
	GuardsRaise    Safeguard = "a guard that fails ends the transaction"
	LogCompare     Safeguard = "the log's head is compared in every commit"
	CompareAlways  Safeguard = "compared also when there is nothing new"
	LogHeld        Safeguard = "the log's row is held from compare to COMMIT"
	NamedHead      Safeguard = "the head is an id, not a count"
	ChainByID      Safeguard = "runs in between begin at the view's head_id"
	ChainNeedsKeys Safeguard = "runs in between have their fingerprints"
	LearnInOrder   Safeguard = "a view learns a run only at that run's end of the log"
	DoubtAsks      Safeguard = "an unanswered COMMIT is settled by reading the row"
	DoubtCatchesUp Safeguard = "after an unanswered COMMIT the view catches up"
	LookUpManifest Safeguard = "a look-up compares the manifest"
)

// Ownership.
const (
	QueueOfClaim    Safeguard = "a queue belongs to one claim"
	OwnerPerClaim   Safeguard = "an owner is drawn for each claim"
	TakeoverWaits   Safeguard = "a takeover waits for the row's lock"
	TakeoverFirst   Safeguard = "the log is read after the takeover"
	ReturnCatchesUp Safeguard = "a view in memory catches up when its partition comes back"
	Watch           Safeguard = "held rows are compared with memory every 5 s"
	WatchNext       Safeguard = "the watch compares next_offset"
	Terminate       Safeguard = "the backend of a member that hangs is ended"
)

// Hand-over.
const (
	OldCursorEnds Safeguard = "what the old claim's cursor fetched stays out of the new queue"
	NewCursorOwn  Safeguard = "what the new claim's cursor fetched stays out of the old queue"
	FencedEnds    Safeguard = "a claim that was fenced ends"
	BeginAtRow    Safeguard = "a new claim begins at the row's position"
)

// The sealed log.
const (
	SwapManifest  Safeguard = "a swap requires the manifest it began with"
	SwapCounts    Safeguard = "a swap counts what it makes live"
	SealBehind    Safeguard = "a view takes a manifest only if its head has reached its sealed"
	FilterFirst   Safeguard = "the filter has the keys before the exact set loses them"
	DropOwnKeys   Safeguard = "a seal drops only its segment's keys"
	DoubtfulSwap  Safeguard = "after an unanswered swap the manifest is read first"
	CleanBySealed Safeguard = "clean-up of runs reads sealed"
	CleanByState  Safeguard = "clean-up of segments reads their state"
	LoadTwice     Safeguard = "a load reads the manifest twice"
	LoadCounts    Safeguard = "a load counts each segment's keys"
	ImageDigest   Safeguard = "a filter's image has the digest of its segment"
)

func (w *World) has(s Safeguard) bool {
	return len(w.Missing) == 0 || !slices.Contains(w.Missing, s)
}
