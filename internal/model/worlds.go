package model

// The worlds have two partitions and three members at most, which is enough for two
// members to hand a partition to each other while a third one writes to the log.

// single is one partition that two members may have.
func single(records ...uint8) *World {
	return &World{
		Name:     "single",
		Records:  [partitions][]uint8{records},
		Eligible: [partitions]Group{0b011},
	}
}

// lane is a partition of two members, and a third member with records of its own
// that are of the same log: scope partition with a replay going on.
func lane(records ...uint8) *World {
	return &World{
		Name:     "lane",
		Records:  [partitions][]uint8{records, {records[len(records)-1]}},
		Eligible: [partitions]Group{0b011, 0b100},
	}
}

// topic is two partitions that two members share, and one key that comes on both:
// scope topic.
func topic() *World {
	return &World{
		Name:     "topic",
		Records:  [partitions][]uint8{{0}, {1, 0}},
		Eligible: [partitions]Group{0b011, 0b011},
	}
}

// sealer is one member that applies and another that only seals.
func sealer() *World {
	return &World{
		Name:     "sealer",
		Records:  [partitions][]uint8{{0, 1, 0}},
		Eligible: [partitions]Group{0b001},
		Sealer:   true,
	}
}

// with returns the world with a budget.
func (w *World) with(b Budget) *World {
	c := *w
	c.Budget = b
	return &c
}

// handingOver returns the world with members that go on with revoked queues.
func (w *World) handingOver() *World {
	c := *w
	c.HandOver = true
	return &c
}

// without returns the world with safeguards taken away.
func (w *World) without(missing ...Safeguard) *World {
	c := *w
	c.Missing = missing
	return &c
}
