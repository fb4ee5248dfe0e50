package demo

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

const naiveGroup = "naive"

// naiveStore reads how far the naive consumer is from what it committed to Kafka.
type naiveStore struct {
	db    *pgxpool.Pool
	kafka *kadm.Client
}

func (n naiveStore) progress(ctx context.Context) (int64, error) {
	offsets, err := n.kafka.FetchOffsets(ctx, naiveGroup)
	switch {
	case errors.Is(err, kerr.GroupIDNotFound): // nobody has joined yet
		return 0, nil
	case err != nil:
		return 0, err
	}
	var at int64
	offsets.Each(func(o kadm.OffsetResponse) { at += max(0, o.At) })
	return at, nil
}

func (n naiveStore) working(ctx context.Context, pid int) (bool, error) {
	var working bool
	err := n.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.naive_at_work WHERE pid = $1)`, pid).Scan(&working)
	return working, err
}
