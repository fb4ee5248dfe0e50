package processor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// loop is the poll goroutine. It alone replaces queues, seeks and resumes: others
// send it requests, which it serves between hand-off and AllowRebalance.
type loop struct {
	p *Processor

	mu   sync.Mutex // guards what follows
	todo []func()
	wake func() // ends the poll under way
}

// ask has f run on the poll goroutine. It never waits.
func (l *loop) ask(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.todo = append(l.todo, f)
	l.wake()
}

// pollEvery bounds one poll, so that a live loop shows a pulse.
const pollEvery = 10 * time.Second

// run polls until ctx ends.
func (l *loop) run(ctx context.Context) error {
	for ctx.Err() == nil {
		l.p.health.pulse()
		limited, wake := context.WithTimeout(ctx, pollEvery)
		l.arm(wake)
		var err error
		if l.p.list.over() {
			l.room(limited)
		} else {
			err = l.poll(limited)
		}
		wake()
		l.serve(limited)
		l.p.client.AllowRebalance()
		if err != nil {
			return err
		}
	}
	return nil
}

// arm makes wake end this turn, at once if a request is waiting.
func (l *loop) arm(wake func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = wake
	if len(l.todo) > 0 {
		wake()
	}
}

// room waits for freed bytes or a request instead of polling.
func (l *loop) room(ctx context.Context) {
	l.p.metrics.full.Inc()
	for l.p.list.over() {
		select {
		case <-ctx.Done():
			return
		case <-l.p.list.freed:
		}
	}
}

// poll fetches and hands off. Errors are looked at first: the records behind a
// truncation come before their error. Its own is one that ends the membership.
func (l *loop) poll(ctx context.Context) (over error) {
	fetches := l.p.client.PollFetches(ctx)
	bad := map[rebalance.Name]bool{}
	fetches.EachError(func(topic string, partition int32, err error) {
		if topic == "" { // the poll's own context, or the group session
			if err := l.p.group.SessionFailed(err); err != nil {
				over = fmt.Errorf("%w: %q", err, l.p.cfg.Instance)
			}
			return
		}
		n := rebalance.Name{Topic: topic, Number: partition}
		bad[n] = l.p.group.Failed(n, err)
	})
	fetches.EachTopic(func(t kgo.FetchTopic) { l.p.group.TopicID(t.Topic, stream.UUID(t.TopicID)) })
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		n := rebalance.Name{Topic: f.Topic, Number: f.Partition}
		if !bad[n] && l.p.list.offer(n, f.Records) {
			l.p.client.PauseFetchPartitions(map[string][]int32{f.Topic: {f.Partition}})
		}
	})
	return over
}

// serve runs the requests. A turn may come here with nothing that holds back a
// rebalance, without room or when what was fetched was given up meanwhile. A poll
// whose context is over takes no records, and holds it back.
func (l *loop) serve(over context.Context) {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	l.mu.Unlock()
	if len(todo) > 0 {
		l.p.client.PollFetches(over)
	}
	for _, f := range todo {
		f()
	}
}

// resume asks for a partition's fetching to go on, once its queue has room.
func (p *Processor) resume(n rebalance.Name) {
	p.loop.ask(func() { p.group.Resume(n) })
}

// mark moves the mirror: Kafka's group offset, after the commit and never ahead.
func (p *Processor) mark(part *part) {
	at := kgo.EpochOffset{Epoch: part.leaderEpoch, Offset: part.to}
	p.client.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{part.q.name.Topic: {part.q.name.Number: at}})
}
