package cli

import (
	"strings"
	"testing"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/internal/redistest"
)

// A filter cache is asked for all that a pipeline will. That it does not answer, or
// refuses, is a warning.
func TestValidateRedis(t *testing.T) {
	db := pgtest.New(t)
	db.Table(t, "orders", "order_id text PRIMARY KEY, amount numeric")
	broker := kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]
	s := redistest.New(t)
	if err := s.Do(t.Context(), "ACL", "SETUSER", "half", "on", ">hunter2", "~effectonce:*", "-@all", "+get").Err(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		set  []string
		says string
	}{
		"works":     {[]string{"redis.addresses=" + s.Address}, "redis            " + s.Address + " answers"},
		"dead":      {[]string{"redis.addresses=" + deadAddress(t)}, "warning  redis "},
		"few right": {[]string{"redis.addresses=" + s.Address, "redis.username=half", "redis.password=hunter2"}, "NOPERM"},
	} {
		args := []string{"validate", live(t, broker, db.RuntimeDSN, db.Schema, db.User), "--set", "dedup.memory=64MiB"}
		for _, set := range c.set {
			args = append(args, "--set", set)
		}
		got := processor(t, args...)
		if got.code != exit.OK || !strings.Contains(got.stdout, c.says) || strings.Contains(got.stdout+got.stderr, "hunter2") {
			t.Errorf("%s: %d\n%s%s", name, got.code, got.stdout, got.stderr)
		}
	}
}
