package sink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Permitted asks the catalog whether the role may write the table at all. A row
// that row-level security refuses and a missing right share SQLSTATE 42501; where
// the right is there, it is the row.
func (t *Table) Permitted(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var insert, update bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.has_any_column_privilege($1::pg_catalog.text, 'INSERT'),
		pg_catalog.has_any_column_privilege($1::pg_catalog.text, 'UPDATE')`, t.config.table()).Scan(&insert, &update)
	if err != nil {
		return false, fmt.Errorf("rights on %s: %w", t.config.table(), err)
	}
	return insert && (update || t.config.Mode != Upsert), nil
}
