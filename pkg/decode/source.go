package decode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// From says where a [Source] takes its value, and so which kinds it can have.
type From uint8

// The places a value can come from.
const (
	Field     From = iota // a member of the document: Text, Number, Bool, JSON, Null or Missing
	Header                // a record header, the last of that name: Bytes, Null or Missing
	Key                   // the Kafka key: Bytes or Null
	Topic                 // the topic's name: Text
	Partition             // the partition's number: Number
	Offset                // the record's offset: Number
	Timestamp             // the record's timestamp: Time, or Null where it has none
	Document              // the whole document: JSON
)

// kafkaNames are what follows "kafka:", in the order people look for them.
var kafkaNames = [...]struct {
	name string
	from From
}{
	{"key", Key},
	{"topic", Topic},
	{"partition", Partition},
	{"offset", Offset},
	{"timestamp", Timestamp},
	{"value", Document},
}

// Source names one value of a record.
type Source struct {
	From From
	Path []string // Field: the member names from the top, at least one
	Name string   // Header: the header's name, compared byte by byte
}

// ParseSource reads a source as a configuration spells it:
//
//	order.id         the member id of the object order
//	/a.b/c           a JSON pointer, for names with dots, colons or brackets (~0 is ~, ~1 is /)
//	header:NAME      the last header of that name
//	kafka:key        kafka:topic, kafka:partition, kafka:offset, kafka:timestamp
//	kafka:value      the whole document
//
// The error says what is wrong and what to write instead.
func ParseSource(s string) (Source, error) {
	parse := parseDotted
	switch {
	case s == "":
		return Source{}, errors.New("source is empty: write a field path such as order.id, header:NAME or kafka:key")
	case !utf8.ValidString(s):
		return Source{}, fmt.Errorf("source %q is not UTF-8", s)
	case strings.HasPrefix(s, "header:"):
		name := strings.TrimPrefix(s, "header:")
		if name == "" {
			return Source{}, fmt.Errorf("source %q names no header: write header:NAME", s)
		}
		return Source{From: Header, Name: name}, nil
	case strings.HasPrefix(s, "kafka:"):
		return parseKafka(s)
	case s[0] == '/':
		parse = parsePointer
	}
	path, err := parse(s)
	if err != nil {
		return Source{}, err
	}
	return Source{From: Field, Path: path}, nil
}

func parseKafka(s string) (Source, error) {
	known := make([]string, 0, len(kafkaNames))
	for _, k := range kafkaNames {
		if s == "kafka:"+k.name {
			return Source{From: k.from}, nil
		}
		known = append(known, "kafka:"+k.name)
	}
	return Source{}, fmt.Errorf("source %q is not known: write one of %s", s, strings.Join(known, ", "))
}

func parsePointer(s string) ([]string, error) {
	p := jsontext.Pointer(s)
	if !p.IsValid() {
		return nil, fmt.Errorf("source %q is no JSON pointer: write ~0 for ~ and ~1 for / inside a name", s)
	}
	return slices.Collect(p.Tokens()), nil
}

// parseDotted refuses what is a mistake more often than a member's name: a
// misspelt "header:", an array index, a stray space. The pointer form takes all
// of them literally.
func parseDotted(s string) ([]string, error) {
	at := strings.IndexFunc(s, func(r rune) bool {
		return r == ':' || r == '[' || r == ']' || unicode.IsControl(r)
	})
	switch {
	case at >= 0 && s[at] == ':':
		return nil, fmt.Errorf("source %q has a colon at character %d: only header: and kafka: take one; "+
			"for a member of that name write %s", s, at+1, asPointer(s))
	case at >= 0:
		return nil, fmt.Errorf("source %q has %q at character %d: elements of arrays cannot be selected; "+
			"for a member of that name write %s", s, s[at], at+1, asPointer(s))
	case strings.TrimSpace(s) != s:
		return nil, fmt.Errorf("source %q begins or ends with a space: remove it, or write %s", s, asPointer(s))
	}
	path := strings.Split(s, ".")
	if i := slices.Index(path, ""); i >= 0 {
		return nil, fmt.Errorf("source %q has an empty name as part %d: remove the extra dot; "+
			"for a name with dots write %s", s, i+1, jsontext.Pointer("").AppendToken(s))
	}
	return path, nil
}

// asPointer is the pointer form of a dotted path, for advice.
func asPointer(s string) string { return pointer(strings.Split(s, ".")) }

func pointer(path []string) string {
	var p jsontext.Pointer
	for _, name := range path {
		p = p.AppendToken(name)
	}
	return string(p)
}

// String spells the source as [ParseSource] reads it, dotted where that is
// possible.
func (s Source) String() string {
	switch s.From {
	case Field:
		dotted := strings.Join(s.Path, ".")
		if back, err := ParseSource(dotted); err == nil && back.From == Field && slices.Equal(back.Path, s.Path) {
			return dotted
		}
		return pointer(s.Path)
	case Header:
		return "header:" + s.Name
	default:
		for _, k := range kafkaNames {
			if k.from == s.From {
				return "kafka:" + k.name
			}
		}
		return fmt.Sprintf("source %d", s.From)
	}
}

func (s Source) check() error {
	switch {
	case s.From > Document:
		return errors.New("it comes from nowhere: take one of the places of decode.From")
	case s.From == Field && len(s.Path) == 0:
		return errors.New("it has no path: the whole document is kafka:value")
	case s.From == Header && s.Name == "":
		return errors.New("it names no header")
	}
	return nil
}
