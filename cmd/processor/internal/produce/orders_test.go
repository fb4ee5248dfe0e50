package produce

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// take collects the first n orders of a stream.
func take(seed uint64, percent, n int) []Order {
	out := make([]Order, 0, n)
	for o := range Orders(seed, percent) {
		if out = append(out, o); len(out) == n {
			break
		}
	}
	return out
}

func TestStreamIsAFunctionOfItsSeed(t *testing.T) {
	if !reflect.DeepEqual(take(7, 10, 5000), take(7, 10, 5000)) {
		t.Fatal("two streams of one seed differ")
	}
	if reflect.DeepEqual(take(7, 10, 100), take(8, 10, 100)) {
		t.Fatal("two seeds gave the same stream")
	}
}

func TestRepeatShareIsExact(t *testing.T) {
	for _, percent := range []int{0, 1, 10, 33, MaxRepeat} {
		for i, from := 0, take(3, percent, 10_000); i < len(from); i += block {
			repeats := 0
			for _, o := range from[i : i+block] {
				if o.Repeat {
					repeats++
				}
			}
			if repeats != percent {
				t.Fatalf("records %d to %d have %d repeats, want %d", i, i+block, repeats, percent)
			}
		}
	}
}

// A repeat is the same key and the same payload again, never the first of its
// key; what is not a repeat is new, and numbered without a gap.
func TestRepeatsAreRedeliveries(t *testing.T) {
	seen := map[string][]byte{}
	var made, far int64
	for i, o := range take(11, 10, 50_000) {
		earlier, known := seen[string(o.Key)]
		if known != o.Repeat {
			t.Fatalf("record %d: key seen before: %t, marked as repeat: %t", i, known, o.Repeat)
		}
		if o.Repeat {
			if !bytes.Equal(earlier, o.Value) {
				t.Fatalf("record %d repeats its key with another payload:\n%s\n%s", i, earlier, o.Value)
			}
			if made-o.Number > recent {
				far++
			}
			continue
		}
		if o.Number != made {
			t.Fatalf("record %d is order %d, want %d", i, o.Number, made)
		}
		made++
		seen[string(o.Key)] = o.Value
	}
	if made != 45_000 || far == 0 {
		t.Fatalf("%d distinct orders, %d late redeliveries; want 45000 and some", made, far)
	}
}

func TestOrderIsJSONOfItsKey(t *testing.T) {
	for _, o := range take(5, 0, 2000) {
		var doc struct {
			OrderID  string      `json:"order_id"`
			Customer string      `json:"customer"`
			Amount   json.Number `json:"amount"`
			Currency string      `json:"currency"`
			Status   string      `json:"status"`
			TS       time.Time   `json:"ts"`
		}
		dec := json.NewDecoder(bytes.NewReader(o.Value))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&doc); err != nil {
			t.Fatalf("%s: %v", o.Value, err)
		}
		if doc.OrderID != string(o.Key) || len(doc.Customer) != 7 || len(doc.Currency) != 3 || doc.Status == "" || doc.TS.IsZero() {
			t.Fatalf("key %s, document %s", o.Key, o.Value)
		}
		if size := len(o.Value); size < 120 || size > 145 {
			t.Fatalf("%d bytes: %s", size, o.Value)
		}
	}
}

func TestNumberInvertsTheKey(t *testing.T) {
	for _, seed := range []uint64{0, 1, 1 << 63, ^uint64(0)} {
		for _, o := range take(seed, 20, 1000) {
			if n, ok := Number(seed, string(o.Key)); !ok || n != o.Number {
				t.Fatalf("seed %d: key %s gives %d, %t; want %d", seed, o.Key, n, ok, o.Number)
			}
		}
	}
	for _, key := range []string{"", "x", "0123456789abcdeg", "0123456789abcdef0"} {
		if n, ok := Number(1, key); ok {
			t.Errorf("key %q is no order, got %d", key, n)
		}
	}
}

func BenchmarkOrders(b *testing.B) {
	left := b.N
	for o := range Orders(1, 10) {
		if b.SetBytes(int64(len(o.Value))); left <= 1 {
			break
		}
		left--
	}
}
