package connect_test

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/cmd/processor/internal/config"
	"effectonce/internal/kafkatest"
)

// A bomb is a batch the broker takes, because it is small, and that fills the
// memory of whoever opens it.
func TestDecompressionBomb(t *testing.T) {
	const (
		batchCap = 1 << 20
		large    = 48 << 20 // of the one record's value
		medium   = 16 << 20 // snappy's best does not fit the broker's limit above this
	)
	for _, c := range []struct {
		name  string
		codec kgo.CompressionCodec
		bits  int16 // of the batch's attributes
		size  int
	}{
		{"gzip", kgo.GzipCompression(), 1, large},
		{"snappy", kgo.SnappyCompression(), 2, medium},
		{"lz4", kgo.Lz4Compression(), 3, large},
		{"zstd", kgo.ZstdCompression(), 4, large},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := kafkatest.Topic(t, 1)
			produceBatch(t, topic, bomb(t, c.codec, c.bits, c.size))
			var small *kgo.ErrDecompressTooLarge
			taken, err := open(t, topic, batchCap)
			if !errors.As(err, &small) || small.Topic != topic || small.Offset != 0 {
				t.Errorf("error is %v, want ErrDecompressTooLarge at offset 0 of %s", err, topic)
			}
			if taken > uint64(c.size)/2 {
				t.Errorf("%d MiB were taken for a batch of %d MiB with a cap of 1 MiB", taken>>20, c.size>>20)
			}
			// Under the default cap it is a batch like any other.
			if _, err := open(t, topic, 0); err != nil {
				t.Errorf("with room: %v", err)
			}
		})
	}
}

// open consumes the topic's first batch and returns what that ended with and
// the bytes allocated for it.
func open(t *testing.T, topic string, batchCap int64) (taken uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cfg := config.Kafka{Brokers: []string{kafkatest.Broker(t)}, MaxDecompressedBatch: config.Size(batchCap)}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	client := newClient(t, cfg, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	defer client.Close()
	fetches := client.PollFetches(ctx)
	runtime.ReadMemStats(&after)
	err = fetches.Err()
	if err == nil && fetches.NumRecords() != 1 {
		t.Errorf("%d records", fetches.NumRecords())
	}
	return after.TotalAlloc - before.TotalAlloc, err
}

// bomb is a batch of one record whose value is size zero bytes.
func bomb(t *testing.T, codec kgo.CompressionCodec, bits int16, size int) []byte {
	t.Helper()
	record := kmsg.NewRecord()
	record.Value = make([]byte, size)
	record.Length = int32(len(record.AppendTo(nil)) - 1) // a zero length is one byte
	compressor, err := kgo.DefaultCompressor(codec)
	if err != nil {
		t.Fatal(err)
	}
	var small bytes.Buffer
	compressed, _ := compressor.Compress(&small, record.AppendTo(nil))
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: bits, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: compressed,
	}
	const headLength, fromAttributes = 12, 21
	wire := batch.AppendTo(nil)
	batch.Length = int32(len(wire) - headLength)
	batch.CRC = int32(crc32.Checksum(wire[fromAttributes:], crc32.MakeTable(crc32.Castagnoli)))
	return batch.AppendTo(nil)
}

// produceBatch sends a batch as it is.
func produceBatch(t *testing.T, topic string, batch []byte) {
	t.Helper()
	client := kafkatest.Client(t, kafkatest.Broker(t))
	topics, err := kadm.NewClient(client).ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	partition := kmsg.NewProduceRequestTopicPartition()
	partition.Records = batch
	to := kmsg.NewProduceRequestTopic()
	to.Topic, to.TopicID = topic, topics[topic].ID
	to.Partitions = append(to.Partitions, partition)
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 30_000
	req.Topics = append(req.Topics, to)
	res, err := req.RequestWith(t.Context(), client)
	if err != nil {
		t.Fatalf("produce: %v", err)
	}
	if err := kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode); err != nil {
		t.Fatalf("produce: %v", err)
	}
}
