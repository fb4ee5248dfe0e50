package offsets

import (
	"strings"

	"github.com/jackc/pgx/v5"

	"effectonce/pkg/stream"
)

// Store holds the SQL of this package for one schema. It is immutable.
type Store struct{ schema string }

// New returns the store of the schema with this (unquoted) name.
func New(schema string) *Store { return &Store{pgx.Identifier{schema}.Sanitize()} }

func (s *Store) sql(text string) string { return strings.ReplaceAll(text, "@schema@", s.schema) }

// columns turns claims into the array parameters that every statement on
// positions starts with.
func columns(claims []stream.Claim) (topics []stream.UUID, numbers []int32, lanes []string, owners []stream.UUID) {
	for _, c := range claims {
		topics = append(topics, c.Partition.Topic)
		numbers = append(numbers, c.Partition.Number)
		lanes = append(lanes, "")
		owners = append(owners, c.Owner)
	}
	return topics, numbers, lanes, owners
}
