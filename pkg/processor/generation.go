package processor

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json" //nolint:depguard // reads the settings written here, never a record
	"errors"
	"fmt"
	"slices"
	"strings"

	"effectonce/pkg/decode"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// rule is what a generation digests, in words: it stands beside it in the
// pipeline's row, so that a refusal can name what the pipeline was made with.
type rule struct {
	Scope      string   `json:"scope"`
	Key        []string `json:"key"` // empty: coordinates
	KeyMissing string   `json:"key_missing"`
}

func (c Config) rule() rule {
	r := rule{Scope: string(c.Scope), Key: []string{}, KeyMissing: string(c.KeyMissing)}
	for _, k := range c.Key {
		s, _ := decode.ParseSource(k) // Validate has seen it
		r.Key = append(r.Key, s.String())
	}
	return r
}

// generation digests what a commit means: scope, key rule, encoding and the
// partition count that keys are hashed over. Two configurations that differ in it
// never commit to one position. The scope is the topic's own, not the rule's.
func (r rule) generation(scope stream.Scope, partitions int32) []byte {
	h := sha256.New()
	part := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	part("effectonce 1") // the encoding of fingerprints
	part(string(scope))
	part(r.KeyMissing)
	for _, k := range r.Key {
		part(k)
	}
	if len(r.Key) > 0 && scope == stream.ScopePartition {
		part(fmt.Sprint(partitions))
	}
	return h.Sum(nil)[:16]
}

// generation is that of the configured rule.
func (c Config) generation(scope stream.Scope, partitions int32) []byte {
	return c.rule().generation(scope, partitions)
}

// accepts reports whether a topic's row is one that this configuration works with:
// of its own generation, or of the one that a member of it has widened the topic to.
func (c Config) accepts(row offsets.Topic) bool {
	widened := c.OnGrowth == GrowthWiden && row.Scope == stream.ScopeTopic
	return (row.Scope == c.Scope || widened) && bytes.Equal(row.Generation, c.generation(row.Scope, row.Partitions))
}

// text is the rule as JSON.
func (r rule) text() string {
	b, _ := json.Marshal(r) //nolint:errchkjson // strings only: never fails
	return string(b)
}

func (r rule) key() string {
	if len(r.Key) == 0 {
		return "coordinates"
	}
	return strings.Join(r.Key, " + ")
}

// words is the rule for people.
func (r rule) words() string {
	return fmt.Sprintf("key %s, key_missing %s, scope %s", r.key(), r.KeyMissing, r.Scope)
}

// against says in which settings r, which a pipeline was made with, differs from
// the configured rule.
func (r rule) against(configured rule) string {
	var differ []string
	say := func(what, made, is string) {
		differ = append(differ, fmt.Sprintf("made with %s %s, configured is %s", what, made, is))
	}
	if !slices.Equal(r.Key, configured.Key) {
		say("key", r.key(), configured.key())
	}
	if r.KeyMissing != configured.KeyMissing {
		say("key_missing", r.KeyMissing, configured.KeyMissing)
	}
	if r.Scope != configured.Scope {
		say("scope", r.Scope, configured.Scope)
	}
	if len(differ) == 0 {
		return "made by another version, or over another partition count"
	}
	return strings.Join(differ, "; ")
}

// ErrGeneration says that the pipeline's rows were made under another key rule: its
// memory recognises nothing under this one. Run the configuration it was made with;
// or have Migrate change it; or give the new one a pipeline name of its own, which
// begins with an empty memory.
var ErrGeneration = errors.New("the pipeline was made for another configuration")

// refusal is the error of a pipeline's row that this configuration does not work
// with. It is found before the group is joined; the takeover compares again.
func (p *Processor) refusal() error {
	var made rule
	if err := json.Unmarshal([]byte(p.pipeline.Settings), &made); err != nil {
		return fmt.Errorf("%w: its settings cannot be read: %w", ErrGeneration, err)
	}
	return fmt.Errorf("%w: %s; run the configuration it was made with, or change it with processor pipeline migrate, or name a new pipeline",
		ErrGeneration, made.against(p.cfg.rule()))
}

// refusalOf is the same for a topic's row. A topic can have been widened by itself.
func (p *Processor) refusalOf(row offsets.Topic) error {
	if row.Scope == p.cfg.Scope {
		return fmt.Errorf("topic %q: %w", row.Name, p.refusal())
	}
	return fmt.Errorf("topic %q: %w: it is in scope %s, configured is %s; set scope: %[3]s (or on_partition_growth: widen, if it was widened), or run processor pipeline migrate",
		row.Name, ErrGeneration, row.Scope, p.cfg.Scope)
}
