package sink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
)

// catalog is what the server says about a table. All of it is read in one round
// trip, with every name of the catalog qualified or found by an empty search path.
type catalog struct {
	relation   relation
	attributes []attribute
	unique     [][]string // columns of each index an upsert can rest on
	siblings   []string   // tables of the schema, for a suggestion
}

type relation struct {
	found       bool
	kind        string // pg_class.relkind
	usage       bool   // the role may look into the schema
	rules       bool
	rowSecurity bool
	foreign     bool // it, or a partition of it, lives on another server
	unlogged    bool // it, or a partition of it, is empty after a crash
}

type attribute struct {
	name                    string
	typeName                string // as people write it
	base                    uint32 // behind all domains
	typmod                  int32
	notNull                 bool // of the column or of a domain
	hasDefault              bool
	identity, generated     string
	insert, selects, update bool // privileges
	deterministic           bool // the collation: equal means the same bytes
}

const readRelation = `
SELECT c.relkind::text, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       c.relhasrules, pg_catalog.row_security_active(c.oid),
       EXISTS (SELECT FROM pg_catalog.pg_class x WHERE x.relkind = 'f' AND x.oid IN
         (SELECT c.oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p)),
       EXISTS (SELECT FROM pg_catalog.pg_class x WHERE x.relpersistence = 'u' AND x.oid IN
         (SELECT c.oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p))
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

// A column's type is followed through its domains; the last one's type modifier
// is the base type's.
const readAttributes = `
WITH RECURSIVE attribute AS (
    SELECT a.*
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped
), chain AS (
    SELECT a.attnum, a.atttypid AS type, a.atttypmod AS typmod, a.attnotnull AS not_null,
           a.atthasdef OR a.attidentity <> '' AS has_default
    FROM attribute a
    UNION ALL
    SELECT b.attnum, t.typbasetype, t.typtypmod, b.not_null OR t.typnotnull, b.has_default OR t.typdefault IS NOT NULL
    FROM chain b
    JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
)
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), b.type, b.typmod, b.not_null,
       b.has_default, a.attidentity::text, a.attgenerated::text,
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'INSERT'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'UPDATE'),
       coalesce(l.collisdeterministic, true)
FROM attribute a
JOIN chain b ON b.attnum = a.attnum
JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
ORDER BY a.attnum`

// ON CONFLICT rests on unique indexes that are valid, checked at once, and
// neither partial nor over expressions.
const readUnique = `
SELECT array_agg(a.attname::text ORDER BY k.n)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (attnum, n)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE n.nspname = $1 AND c.relname = $2 AND k.n <= i.indnkeyatts
  AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid`

const readSiblings = `
SELECT c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v')
ORDER BY c.relname
LIMIT 1000`

// readCatalog reads what the server knows of a table.
func readCatalog(ctx context.Context, conn *pgx.Conn, schema, table string) (*catalog, error) {
	var c catalog
	names := []pgtx.Param{pgtx.Text(schema), pgtx.Text(table)}
	err := pgtx.Once(ctx, conn, pgtx.DefaultSettings,
		pgtx.Statement{Step: pgtx.StepBegin, SQL: readRelation, Params: names, Row: func(row pgtx.Row) error {
			c.relation.found = true
			r := &c.relation
			return row.Scan(&r.kind, &r.usage, &r.rules, &r.rowSecurity, &r.foreign, &r.unlogged)
		}},
		pgtx.Statement{Step: pgtx.StepBegin, SQL: readAttributes, Params: names, Row: func(row pgtx.Row) error {
			var a attribute
			err := row.Scan(&a.name, &a.typeName, &a.base, &a.typmod, &a.notNull, &a.hasDefault, &a.identity,
				&a.generated, &a.insert, &a.selects, &a.update, &a.deterministic)
			c.attributes = append(c.attributes, a)
			return err
		}},
		pgtx.Statement{Step: pgtx.StepBegin, SQL: readUnique, Params: names, Row: func(row pgtx.Row) error {
			var columns []string
			err := row.Scan(&columns)
			c.unique = append(c.unique, columns)
			return err
		}},
		pgtx.Statement{Step: pgtx.StepBegin, SQL: readSiblings, Params: names[:1], Row: func(row pgtx.Row) error {
			var name string
			err := row.Scan(&name)
			c.siblings = append(c.siblings, name)
			return err
		}},
	)
	if err != nil {
		return nil, fmt.Errorf("read catalog: %w", err)
	}
	return &c, nil
}
