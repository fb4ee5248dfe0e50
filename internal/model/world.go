package model

// World is one thing to search: who works on which records, what may happen to them
// and how often, and which safeguards are missing.
type World struct {
	Name     string
	Records  [partitions][]uint8 // the key of each record, by offset
	Eligible [partitions]Group   // who may be assigned the partition
	Sealer   bool                // the last member holds nothing and seals for the others
	Budget   Budget
	HandOver bool        // a member goes on with the queue of a revoked claim
	Missing  []Safeguard // taken away
}

// Group is a set of members, one bit each.
type Group uint8

// Budget is how often each kind of adversity may strike.
type Budget struct {
	Rebalances uint8 // a partition is assigned to somebody else
	Crashes    uint8 // a member is killed; its backend may live on
	Unknown    uint8 // a COMMIT has no answer
	Failovers  uint8 // a copy that lags, by any number of commits, takes over; 0 or 1
	Hangs      uint8 // a member stands still for ever
	Seals      uint8
	Merges     uint8 // compactions
}

// begin is the state that everything starts from.
func (w *World) begin() state {
	s := state{Left: w.Budget}
	if w.Budget.Failovers == 0 {
		s.Lag = retired
	}
	for p := range partitions {
		for m := range members {
			if w.eligible(p, m) {
				s.Assigned[p] = uint8(m)
				if p == 0 { // of the other one, the last that may have it
					break
				}
			}
		}
	}
	return s
}

func (w *World) eligible(p, m int) bool { return w.Eligible[p]>>m&1 == 1 }

// end is the offset behind a partition's last record.
func (w *World) end(p int) uint8 { return uint8(len(w.Records[p])) }

// key is that of the record at an offset.
func (w *World) key(p int, offset uint8) keys { return 1 << w.Records[p][offset] }

// applied are the keys whose effect is in the database.
func (w *World) applied(d *database) (ks keys) {
	for p := range partitions {
		for o := range w.end(p) {
			if d.Applied[p]>>o&1 == 1 {
				ks |= w.key(p, o)
			}
		}
	}
	return ks
}

func (w *World) seals() bool { return w.Budget.Seals+w.Budget.Merges > 0 }
