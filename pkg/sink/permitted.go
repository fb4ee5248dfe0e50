package sink

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Permitted asks the catalog whether the role has every right that the mapping
// needs. A row that row-level security refuses and a missing right share SQLSTATE
// 42501; where the rights are there, it is the row.
func (t *Table) Permitted(ctx context.Context, conn *pgx.Conn) (bool, error) {
	c, err := readCatalog(ctx, conn, t.config.Schema, t.config.Name)
	if err != nil {
		return false, err
	}
	for _, col := range t.config.Columns {
		a := c.attribute(col.Name)
		if a == nil || len(a.privileges(&t.config, slices.Contains(t.config.Conflict, col.Name))) > 0 {
			return false, nil
		}
	}
	return c.relation.usage, nil
}
