package processor

import (
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtest"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Two members meet a growth, and the change takes longer than the grace. The second
// does not end the first, which would do the same to it ten seconds later.
func TestWhoWidensIsNotEnded(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), stream.UUID{0xf0}
	db.Exec(t, `INSERT INTO `+db.Relation("pipelines")+` (name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ('p', decode(repeat('00', 16), 'hex'), 'g', 'p', 'c', 0)`)
	db.Exec(t, `INSERT INTO `+db.Relation("topics")+` (pipeline, topic_id, name, partitions, scope, start, generation)
		SELECT id, $1, 'w', 1, 'partition', '', 'g' FROM `+db.Relation("pipelines"), topic)
	db.Exec(t, `INSERT INTO `+db.Relation("positions")+` (pipeline, topic_id, partition, next_offset, generation)
		SELECT id, $1, 0, 0, 'g' FROM `+db.Relation("pipelines"), topic)
	db.Exec(t, `INSERT INTO `+db.Relation("logs")+` (pipeline, topic_id, partition, generation)
		SELECT id, $1, 0, 'g' FROM `+db.Relation("pipelines"), topic)
	u, err := url.Parse(db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	direct := u.Host
	proxy := pgproxytest.Start(t, direct)
	member := func(host string) *Processor {
		u.Host = host
		cfg, err := pgxpool.ParseConfig(u.String())
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.RuntimeParams["application_name"] = "effectonce:" + db.Schema + ":member"
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		p := &Processor{control: pool, offsets: offsets.New(db.Schema), log: dedup.New(db.Schema), sessions: "effectonce:" + db.Schema + ":"}
		p.cfg.Grace = 100 * time.Millisecond
		if err := db.Owner.QueryRow(t.Context(), "SELECT id FROM "+db.Relation("pipelines")).Scan(&p.pipeline.ID); err != nil {
			t.Fatal(err)
		}
		return p
	}
	c := change{
		row: offsets.Topic{ID: topic, Name: "w", Partitions: 1, Scope: stream.ScopePartition, Generation: []byte("g")}, keep: true,
		rule: rule{Key: []string{"k"}}, scope: stream.ScopeTopic, count: 1,
	}
	slow, quick := member(proxy.Addr()), member(direct)
	proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: "change_logs("})
	ended := make(chan error, 1)
	go func() { ended <- slow.widen(t.Context(), c) }()
	<-proxy.Fired()
	if err := quick.widen(t.Context(), c); err == nil {
		t.Error("two widened it")
	}
	proxy.Release()
	if err := <-ended; err != nil {
		t.Errorf("the first was ended: %v", err)
	}
}
