package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka is a private broker on the loopback interface that keeps its data on disk.
type Kafka struct {
	*Child

	Address string
}

type kafkaOrders struct {
	Dir        string `json:"dir"` // of the data
	Topic      string `json:"topic"`
	Partitions int32  `json:"partitions"`
	Scratch    string `json:"scratch"` // removed at the end
	After      string `json:"after"`   // not before this file is gone
}

type kafkaAnswer struct {
	Address string `json:"address"`
}

// shortestSession lets consumers of a demo or a test notice a death fast.
const shortestSession = time.Second

// StartKafka starts a private broker below dir with one topic, through the keeper
// verb of the binary at path. Whatever ends us, the keeper removes dir at its own
// end, once pg (nil if there is none) has stopped.
func StartKafka(ctx context.Context, path, dir, topic string, partitions int32, pg *Postgres) (*Kafka, error) {
	orders := kafkaOrders{Dir: filepath.Join(dir, "kafka"), Topic: topic, Partitions: partitions, Scratch: dir}
	if pg != nil {
		orders.After = pg.pidFile
	}
	child, err := Start(Spec{Name: "Kafka", Path: path, Args: []string{KafkaVerb}, Log: filepath.Join(dir, "kafka.log"),
		Orders: orders, Answers: true, Orphaned: syscall.SIGTERM})
	if err != nil {
		return nil, err
	}
	var a kafkaAnswer
	if err := child.Answer(ctx, &a); err != nil {
		return nil, errors.Join(err, (&Kafka{Child: child}).Stop())
	}
	return &Kafka{Child: child, Address: a.Address}, nil
}

// Stop stops the broker and removes the directory it was started below.
func (k *Kafka) Stop() error {
	const grace = 20 * time.Second
	return k.Child.Stop(grace)
}

// ServeKafka is the keeper's verb: it reads its orders, runs the broker, answers,
// and when the input or the context ends it stops the broker and removes the
// scratch directory.
func ServeKafka(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var orders kafkaOrders
	ctx, cancel, err := Receive(ctx, stdin, &orders)
	if err != nil {
		return err
	}
	defer cancel()

	if err := os.MkdirAll(orders.Dir, 0o700); err != nil {
		return fmt.Errorf("directory of Kafka: %w", err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(orders.Dir), kfake.SeedTopics(orders.Partitions, orders.Topic),
		kfake.GroupMinSessionTimeout(shortestSession))
	if err != nil {
		return fmt.Errorf("start Kafka: %w", err)
	}
	if err = json.NewEncoder(stdout).Encode(kafkaAnswer{cluster.ListenAddrs()[0]}); err == nil {
		<-ctx.Done()
	}
	cluster.Close()
	return errors.Join(err, remove(orders.Scratch, orders.After))
}

// remove removes dir once the file after is gone: Postgres finds its own process
// by that file when it is told to stop. Others may still be ending and writing, so
// a directory that fills again is removed again.
func remove(dir, after string) error {
	const patience, pause = 15 * time.Second, 20 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		_, err := os.Stat(after)
		if late := time.Now().After(end); !errors.Is(err, fs.ErrNotExist) && !late {
			continue
		} else if err := os.RemoveAll(dir); err == nil || late {
			return err
		}
	}
}
