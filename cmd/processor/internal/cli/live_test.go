package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/migrations"
)

// live is a configuration for real services.
func live(t *testing.T, broker, dsn, schema, table string) string {
	t.Helper()
	return write(t, fmt.Sprintf(`
pipeline: orders
kafka: {brokers: [%q], topics: [orders]}
postgres: {dsn: %q, schema: %q}
key: order_id
sink: {table: {schema: %q, name: orders, columns: {order_id: order_id, amount: amount}}}
`, broker, dsn, schema, table))
}

func TestValidateLive(t *testing.T) {
	db := pgtest.New(t)
	db.Table(t, "orders", "order_id text PRIMARY KEY, amount numeric")
	broker := kafkatest.Fake(t, 3, "orders").ListenAddrs()[0]

	got := processor(t, "validate", live(t, broker, db.RuntimeDSN, db.Schema, db.User))
	if got.code != exit.OK || strings.Contains(got.stdout, "warning") {
		t.Errorf("as the runtime role: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	for _, want := range []string{"topic orders has 3 partitions", "is at version", `"orders" takes 2 columns`} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
	got = processor(t, "validate", live(t, broker, db.OwnerDSN, db.Schema, db.User))
	if got.code != exit.OK || !strings.Contains(got.stdout, "warning  postgres") {
		t.Errorf("as the owner: %d, and no warning\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = processor(t, "validate", live(t, broker, pgtest.DSN(t), db.Schema, db.User))
	if got.code != exit.OK || !strings.Contains(got.stdout, "superuser") {
		t.Errorf("as a superuser: %d, and no warning\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// Everything that does not fit is found in one run.
func TestValidateFindsAllThatDoesNotFit(t *testing.T) {
	db := pgtest.New(t)
	db.Table(t, "orders", "order_id point, amount text")
	broker := kafkatest.Fake(t, 1, "payments").ListenAddrs()[0]
	file := live(t, broker, db.RuntimeDSN, "no_such_schema", db.User)
	got := processor(t, "validate", file, "-o", "json", "--set", "sink.table.columns.amout=amount")
	if got.code != exit.Refused {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
	var answer report
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || answer.OK {
		t.Fatalf("ok is %t, %v\n%s", answer.OK, err, got.stdout)
	}
	found := map[string]int{}
	for _, f := range answer.Findings {
		if f.State == stateError {
			found[f.About]++
		}
	}
	if found["kafka.topics"] != 1 || found["postgres.schema"] != 1 || found["sink.table"] != 2 {
		t.Errorf("found %v\n%s", found, got.stderr)
	}
}

// Somebody who listens and never answers must not hold up a deployment.
func TestValidateGivesUpOnSilence(t *testing.T) {
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	db := pgtest.New(t)
	broker := kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]
	addr := silent.Addr().String()
	for name, file := range map[string]string{
		"dead broker":     live(t, deadAddress(t), db.RuntimeDSN, db.Schema, db.User),
		"silent broker":   live(t, addr, db.RuntimeDSN, db.Schema, db.User),
		"dead database":   live(t, broker, "postgres://u:hunter2@"+deadAddress(t)+"/d", db.Schema, db.User),
		"silent database": live(t, broker, "postgres://u:hunter2@"+addr+"/d", db.Schema, db.User),
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			got := processor(t, "validate", file)
			if got.code != exit.Unavailable || !strings.Contains(got.stderr, "127.0.0.1:") || strings.Contains(got.stderr, "hunter2") {
				t.Errorf("exit code %d, %s", got.code, got.stderr)
			}
			if took := time.Since(begin); took > reach+5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// A refused login is no outage: something must be changed.
func TestRefusedLogin(t *testing.T) {
	db := pgtest.New(t)
	broker := kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]
	nobody := "postgres://effectonce_test_nobody:hunter2@" + strings.SplitN(strings.SplitN(pgtest.DSN(t), "@", 2)[1], "?", 2)[0] + "?sslmode=disable"
	file := live(t, broker, nobody, db.Schema, db.User)
	for _, verb := range [][]string{{"validate"}, {"migrate", "status"}, {"migrate", "up"}, {"migrate", "down"}} {
		got := processor(t, append(verb, file)...)
		if got.code != exit.Config || strings.Contains(got.stdout+got.stderr, "hunter2") {
			t.Errorf("%v: %d\n%s%s", verb, got.code, got.stdout, got.stderr)
		}
	}
}

func TestMigrate(t *testing.T) {
	db := pgtest.New(t)
	schema := db.Schema + "_cli"
	t.Cleanup(func() {
		if _, err := db.Owner.Exec(context.WithoutCancel(t.Context()), `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`); err != nil {
			t.Error(err)
		}
	})
	file := live(t, "127.0.0.1:9092", db.OwnerDSN, schema, db.User)
	step := func(code int, says string, args ...string) {
		t.Helper()
		got := processor(t, append([]string{"migrate"}, append(args, file)...)...)
		if got.code != code || !strings.Contains(got.stdout+got.stderr, says) {
			t.Fatalf("%v: %d, want %d and %q\n%s%s", args, got.code, code, says, got.stdout, got.stderr)
		}
	}
	step(exit.Refused, "pending", "status")
	step(exit.OK, "no migration to undo", "down")
	step(exit.OK, "granted to role effectonce_test_runtime", "up", "--runtime-role", "effectonce_test_runtime")
	step(exit.OK, "is up to date", "up")
	step(exit.OK, "0001", "status")
	step(exit.OK, `"migrations"`, "status", "-o", "json")
	step(exit.Refused, "nothing was done", "down")
	step(exit.OK, "0001", "status")
	oldest, newest := migrations.Range()
	for range newest - oldest {
		step(exit.OK, "undone", "down", "--yes")
		step(exit.OK, "pending", "status") // this binary works with the one before, too
	}
	step(exit.OK, "undone", "down", "--yes")
	step(exit.Refused, "pending", "status")
	step(exit.OK, "CREATE", "sql")
	step(exit.OK, "GRANT", "sql", "--runtime-role", "effectonce_test_runtime")
}
