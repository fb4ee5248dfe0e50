package migrations

import "time"

// Impatient makes m wait for another migration for a moment only. (Tests of this
// package stand outside it: pgtest imports it.)
func (m *Migrator) Impatient() {
	m.lock.wait, m.lock.again = 50*time.Millisecond, 10*time.Millisecond
}
