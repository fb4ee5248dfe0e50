package decode_test

import (
	"strings"
	"testing"
	"time"

	"effectonce/pkg/decode"
	"effectonce/pkg/stream"
)

// order is the document of the speed budget: six members, about 130 bytes.
const order = `{"order_id":"ord-00001234567","customer":"cust-884213","amount":1299.95,"currency":"EUR","status":"paid","at":"2024-03-31T02:30:00Z"}`

// wide is about 1 KiB with nested members that nobody reads.
var wide = `{"order":{"id":"ord-1","lines":[` + strings.Repeat(`{"sku":"A-100","n":2,"price":9.99},`, 20) +
	`{"sku":"z","n":1}]},"customer":{"name":"Sch\u00f6n","vip":true},"note":"` + strings.Repeat("x", 200) + `","total":419.58}`

func record(doc string) *stream.Record {
	return &stream.Record{
		Topic:     "orders",
		Partition: stream.Partition{Number: 7},
		Offset:    123456789,
		Timestamp: time.UnixMilli(1711850400123),
		Key:       []byte("ord-00001234567"),
		Value:     []byte(doc),
		Headers:   []stream.Header{{Key: "source", Value: []byte("shop")}},
	}
}

func plan(tb testing.TB, limits decode.Limits, sources ...string) *decode.Plan {
	tb.Helper()
	parsed := make([]decode.Source, len(sources))
	for i, s := range sources {
		var err error
		if parsed[i], err = decode.ParseSource(s); err != nil {
			tb.Fatal(err)
		}
	}
	p, err := decode.New(parsed, limits)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

var benches = []struct {
	name    string
	doc     string
	sources []string
}{
	{"order/3", order, []string{"order_id", "amount", "at"}},
	{"order/6", order, []string{"order_id", "customer", "amount", "currency", "status", "at"}},
	{"order/6+kafka", order, []string{"order_id", "customer", "amount", "currency", "status", "at", "header:source", "kafka:topic", "kafka:offset", "kafka:timestamp"}},
	{"wide/3", wide, []string{"order.id", "customer.name", "total"}},
	{"beside", order, []string{"kafka:key", "header:source", "kafka:offset"}},
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range benches {
		b.Run(c.name, func(b *testing.B) {
			d := plan(b, decode.Limits{}, c.sources...).NewDecoder()
			r, dst := record(c.doc), make([]stream.Value, len(c.sources))
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%1000 == 0 {
					d.Reset()
				}
				if err := d.Decode(r, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
