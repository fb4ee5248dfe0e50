package model

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mutant is a world that lacks safeguards, and the shortest way in which it breaks.
type mutant struct {
	missing []Safeguard
	world   *World
	verdict string
	steps   int
}

func (x mutant) run(t *testing.T) {
	t.Helper()
	w := x.world.without(x.missing...)
	r := look(t, w)
	if verdict(r) != x.verdict || len(r.Trace) != x.steps {
		t.Errorf("without %q: %s after %d steps, want %s after %d\n%s",
			x.missing, verdict(r), len(r.Trace), x.verdict, x.steps, strings.Join(r.Trace, "\n"))
	}
}

func one(s Safeguard, w *World, verdict string, steps int) mutant {
	return mutant{[]Safeguard{s}, w, verdict, steps}
}

// needed are the safeguards that a world breaks without.
func needed() []mutant {
	back := Budget{Failovers: 1}
	movedTwice := Budget{Rebalances: 2}
	movedAndBack := Budget{Rebalances: 1, Failovers: 1}
	return []mutant{
		one(FenceNext, single(0, 1).with(movedAndBack), "LOST", 19),
		one(GuardsRaise, single(0, 1).with(movedAndBack), "REORDERED", 28),
		one(LogCompare, lane(0, 0), "DOUBLED", 16),
		one(LogCompare, single(0, 0).with(movedTwice), "DOUBLED", 19),
		one(CompareAlways, topic().with(back), "LOST", 18),
		one(LogHeld, lane(0, 0), "DOUBLED", 16),
		one(NamedHead, topic().with(movedAndBack), "LOST", 24),
		one(ChainByID, topic().with(movedAndBack), "LOST", 24),
		one(QueueOfClaim, single(0, 1).with(movedAndBack), "LOST", 19),
		one(Watch, single(0).with(back), "STUCK", 10),
		one(WatchNext, single(0).with(back), "STUCK", 10),
		one(Terminate, single(0).with(Budget{Hangs: 1}), "STUCK", 7),
	}
}

// neededToHandOver are those of a member that goes on with a revoked queue.
func neededToHandOver() []mutant {
	movedTwice := Budget{Rebalances: 2}
	movedAndBack := Budget{Rebalances: 1, Failovers: 1}
	return []mutant{
		one(OldCursorEnds, single(0, 1).with(movedTwice).handingOver(), "LOST", 12),
		one(NewCursorOwn, single(0, 1).with(Budget{Rebalances: 2, Failovers: 1}).handingOver(), "LOST", 22),
		one(FencedEnds, single(0, 1).with(movedAndBack).handingOver(), "LOST", 20),
		one(LearnInOrder, single(0, 1).with(movedAndBack).handingOver(), "LOST", 26),
		one(FenceNext, single(0, 1).with(movedAndBack).handingOver(), "LOST", 18),
		one(LogCompare, lane(0, 0).with(Budget{Rebalances: 1}).handingOver(), "DOUBLED", 16),
		one(QueueOfClaim, single(0, 1).with(movedAndBack).handingOver(), "LOST", 19),
		one(Watch, single(0).with(movedAndBack).handingOver(), "STUCK", 10),
	}
}

// neededToSeal are those of the sealed log.
func neededToSeal() []mutant {
	sealed := Budget{Seals: 1}
	sealedAndBack := Budget{Seals: 1, Failovers: 1}
	merged := Budget{Seals: 1, Merges: 1, Failovers: 1}
	return []mutant{
		one(ChainNeedsKeys, lane(0).with(sealed), "DOUBLED", 21),
		one(LookUpManifest, single(0, 0).with(sealedAndBack), "DOUBLED", 18),
		one(SwapManifest, sealer().with(Budget{Seals: 2}), "STUCK", 21),
		one(SwapCounts, single(0, 0).with(sealedAndBack), "DOUBLED", 18),
		one(SealBehind, lane(0).with(sealedAndBack), "LOST", 22),
		one(FilterFirst, single(0, 0).with(sealed), "DOUBLED", 18),
		one(DropOwnKeys, single(0, 1, 1).with(sealed), "DOUBLED", 20),
		one(DoubtfulSwap, single(0, 0).with(Budget{Seals: 1, Unknown: 1}), "DOUBLED", 16),
		one(CleanBySealed, single(0, 0).with(sealedAndBack), "STUCK", 15),
		one(CleanByState, single(0, 0).with(merged), "DOUBLED", 28),
		one(LoadTwice, lane(0).with(sealedAndBack), "DOUBLED", 23),
		one(LoadCounts, lane(0).with(merged), "DOUBLED", 26),
		one(ImageDigest, lane(0).with(sealed), "DOUBLED", 21),
	}
}

func TestWithoutASafeguardItBreaks(t *testing.T) {
	for _, x := range slices.Concat(needed(), neededToHandOver(), neededToSeal()) {
		x.run(t)
	}
}

// backed are pairs of which each makes up for the other's absence in that world:
// only without both does it break.
func backed() []mutant {
	pairs := []mutant{
		{[]Safeguard{FenceOwner, FenceNext}, single(0, 1, 0).with(Budget{Rebalances: 1}), "ENDLESS", 42},
		{[]Safeguard{TakeoverWaits, LogCompare}, single(0, 0).with(Budget{Rebalances: 1}), "DOUBLED", 19},
		{[]Safeguard{TakeoverFirst, LogCompare}, single(0, 0).with(Budget{Rebalances: 1}), "DOUBLED", 17},
		{[]Safeguard{DoubtCatchesUp, LogCompare}, single(0, 0).with(Budget{Unknown: 1}), "DOUBLED", 14},
		{[]Safeguard{DoubtAsks, Watch}, single(0).with(Budget{Unknown: 1}), "STUCK", 9},
		{[]Safeguard{BeginAtRow, FenceNext}, single(0, 1).with(Budget{Rebalances: 2}).handingOver(), "LOST", 12},
	}
	if large() {
		pairs = append(pairs, mutant{
			[]Safeguard{OwnerPerClaim, FenceNext}, single(0, 1, 0).with(Budget{Rebalances: 2}).handingOver(), "ENDLESS", 39,
		})
	}
	return pairs
}

func TestTwoSafeguardsBackEachOther(t *testing.T) {
	for _, x := range backed() {
		x.run(t)
		for _, s := range x.missing {
			one(s, x.world, "ok", 0).run(t)
		}
	}
}

// surplus are safeguards that no small world breaks without: either others carry
// everything, or the model is too weak to show what they are for.
func surplus() []mutant {
	return []mutant{
		one(ReturnCatchesUp, single(0, 0).with(Budget{Rebalances: 2, Crashes: 1}), "ok", 0),
		one(OwnerPerClaim, single(0, 1).with(Budget{Rebalances: 2}).handingOver(), "ok", 0),
		one(FenceOwner, single(0, 1).with(Budget{Rebalances: 2}).handingOver(), "ok", 0),
	}
}

func TestOthersCarryWhatTheseAreFor(t *testing.T) {
	for _, x := range surplus() {
		x.run(t)
	}
}

func TestEverySafeguardHasAVerdict(t *testing.T) {
	var shown []Safeguard
	for _, x := range slices.Concat(needed(), neededToHandOver(), neededToSeal(), backed(), surplus()) {
		shown = append(shown, x.missing...)
	}
	all := declared(t)
	if len(all) == 0 {
		t.Fatal("no safeguard is declared")
	}
	for _, s := range all {
		if !slices.Contains(shown, s) {
			t.Errorf("no world shows what this is for: %s", s)
		}
	}
}

// declared are the constants of safeguard.go.
func declared(t *testing.T) (all []Safeguard) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "safeguard.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, v := range spec.Values {
			lit, ok := v.(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s is not a literal", spec.Names[0])
			}
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Safeguard(s))
		}
		return true
	})
	return all
}
