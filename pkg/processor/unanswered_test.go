package processor

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// The connection goes while a view is caught up before its first batch. That was no
// COMMIT of the batch: taken for one, the position, which is where the batch begins,
// would be taken for where it ends, and its records would be let go.
func TestAQuestionWithoutAnAnswerSettlesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	topic, owner := stream.UUID{0xf0}, stream.UUID{0xa0}
	db.Exec(t, `INSERT INTO `+db.Relation("pipelines")+` (name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ('p', decode(repeat('00', 16), 'hex'), 'g', 'p', 'c', 0)`)
	db.Exec(t, `INSERT INTO `+db.Relation("topics")+` (pipeline, topic_id, name, partitions, scope, start, generation)
		SELECT id, $1, 'w', 1, 'topic', '', 'g' FROM `+db.Relation("pipelines"), topic)
	db.Exec(t, `INSERT INTO `+db.Relation("positions")+` (pipeline, topic_id, partition, next_offset, owner, generation)
		SELECT id, $1, 0, 0, $2, 'g' FROM `+db.Relation("pipelines"), topic, owner)
	db.Exec(t, `INSERT INTO `+db.Relation("logs")+` (pipeline, topic_id, generation) SELECT id, $1, 'g' FROM `+db.Relation("pipelines"), topic)

	u, err := url.Parse(db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	proxy := pgproxytest.Start(t, u.Host)
	u.Host = proxy.Addr()
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)

	l := newList(100, 1<<20, 1<<30)
	l.shared = map[string]bool{"w": true}
	p := &Processor{
		list: l, background: pool, commits: pool, control: pool, client: client, settings: pgtx.DefaultSettings,
		log: dedup.New(db.Schema), offsets: offsets.New(db.Schema), metrics: newMetrics(),
		topics: map[string]rebalance.Topic{"w": {Generation: []byte("g")}},
	}
	if err := db.Owner.QueryRow(t.Context(), "SELECT id FROM "+db.Relation("pipelines")).Scan(&p.pipeline.ID); err != nil {
		t.Fatal(err)
	}
	l.open(stream.Claim{TopicName: "w", Partition: stream.Partition{Topic: topic}, Owner: owner})
	s := l.takeLoad()
	s.suspected = true // as a second partition does that comes while the view is loaded
	p.loadView(t.Context(), s)
	l.offer(wholeName(0), recordsOf(0, 3))

	proxy.Arm(pgproxytest.CutBeforeCommit, pgproxytest.Filter{})
	(&committer{p: p}).do(t.Context(), l.take())
	<-proxy.Fired()
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.byName[wholeName(0)]; q.waiting() != 3 {
		t.Errorf("%d of 3 records are left, and the position is %d", q.waiting(), q.claim.Next)
	}
}
