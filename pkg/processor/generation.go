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
	"effectonce/pkg/stream"
)

// generation digests what a commit means: scope, key rule, encoding and the
// partition count that keys are hashed over. Two configurations that differ in it
// never commit to one position.
func (c Config) generation(scope stream.Scope, partitions int32) []byte {
	h := sha256.New()
	part := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	r := c.rule()
	part("effectonce 1") // the encoding of fingerprints
	part(string(scope))
	part(r.KeyMissing)
	for _, k := range r.Key {
		part(k)
	}
	if len(c.Key) > 0 && scope == stream.ScopePartition {
		part(fmt.Sprint(partitions))
	}
	return h.Sum(nil)[:16]
}

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
// memory recognises nothing under this one. Run the configuration it was made with,
// or give the new one a pipeline name of its own, which begins with an empty memory.
var ErrGeneration = errors.New("the pipeline was made for another configuration")

// madeAlike compares a stored generation with this configuration's, before the
// group is joined; the takeover compares it again.
func (p *Processor) madeAlike(stored []byte, partitions int32) error {
	if bytes.Equal(stored, p.cfg.generation(p.cfg.Scope, partitions)) {
		return nil
	}
	var made rule
	if err := json.Unmarshal([]byte(p.pipeline.Settings), &made); err != nil {
		return fmt.Errorf("%w: its settings cannot be read: %w", ErrGeneration, err)
	}
	return fmt.Errorf("%w: %s; run the configuration it was made with, or name a new pipeline", ErrGeneration, made.against(p.cfg.rule()))
}
