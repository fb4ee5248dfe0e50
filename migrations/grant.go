package migrations

import (
	"context"
	"fmt"
	"strings"
)

// privileges is what the runtime role does with each table. Rows are deleted only
// where something expires or is over: nothing ever deletes a position, a log, a dead letter
// or a decision. Identity columns need no right on their sequence.
func privileges() []struct{ tables, rights string } {
	return []struct{ tables, rights string }{
		{"pipelines topics positions logs dead_letters gates", "SELECT, INSERT, UPDATE"},
		{"runs segments outbox stops", "SELECT, INSERT, UPDATE, DELETE"},
		{"blocks holds", "SELECT, INSERT, DELETE"},
		{"decisions", "SELECT, INSERT"},
		{"audit " + versionTableName, "SELECT"},
	}
}

// Grant gives the role that runs pipelines what it needs on our tables and no
// more. It may be called again, and should be after each Up. A schema that this
// binary does not work with is an *OutOfRangeError.
func (m *Migrator) Grant(ctx context.Context, role string) error {
	grants, err := GrantSQL(m.schema, role)
	if err != nil {
		return err
	}
	if err := m.Check(ctx); err != nil {
		return err
	}
	tx, err := m.lock.begin(ctx, m.db) // two grants at once would meet on the catalog's rows
	if err != nil {
		return fmt.Errorf("grant to %q: %w", role, err)
	}
	defer func() { _ = tx.Rollback() }() // after COMMIT it does nothing
	if _, err := tx.ExecContext(ctx, grants); err != nil {
		return fmt.Errorf("grant to %q: %w", role, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("grant to %q: %w", role, err)
	}
	return nil
}

// GrantSQL returns the statements of Grant, for DBAs.
func GrantSQL(schema, role string) (string, error) {
	for _, name := range []string{schema, role} {
		if err := checkName(name); err != nil {
			return "", fmt.Errorf("grant: %w", err)
		}
	}
	if role == "public" { // also in quotes it stands for everybody
		return "", fmt.Errorf("%w: %q is every role of the server", ErrName, role)
	}
	var b strings.Builder
	to := quote(role)
	fmt.Fprintf(&b, "GRANT USAGE ON SCHEMA %s TO %s;\n", quote(schema), to)
	for _, p := range privileges() {
		tables := strings.Fields(p.tables)
		for i := range tables {
			tables[i] = quote(schema, tables[i])
		}
		fmt.Fprintf(&b, "GRANT %s ON %s TO %s;\n", p.rights, strings.Join(tables, ", "), to)
	}
	fmt.Fprintf(&b, "GRANT USAGE ON TYPE %s, %s TO %s;\n", quote(schema, "run_range"), quote(schema, "key_part"), to)
	fmt.Fprintf(&b, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %s;\n", quote(schema), to)
	return b.String(), nil
}
