package config

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-playground/validator/v10"

	"effectonce/pkg/decode"
)

// maxIdentifier is what Postgres keeps of a name, in bytes.
const maxIdentifier = 63

var (
	pipelineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	topicName    = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
)

// checkFields applies the rules that stand beside each field.
func checkFields(c *Config) []violation {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(settingName)
	for tag, check := range map[string]func(string) bool{
		"name":       pipelineName.MatchString,
		"topic":      isTopicName,
		"instance":   isTopicName, // Kafka has one rule for both
		"hostport":   isHostPort,
		"identifier": func(s string) bool { return identifierFault(s) == "" },
		"source":     func(s string) bool { return sourceFault(s) == "" },
		"path":       func(s string) bool { return !strings.ContainsAny(s, "\n\x00") },
	} {
		// An error here is a tag registered twice or empty: not with this map.
		_ = v.RegisterValidation(tag, func(f validator.FieldLevel) bool { return check(f.Field().String()) })
	}
	var found validator.ValidationErrors
	if err := v.Struct(c); !errors.As(err, &found) {
		return nil
	}
	violations := make([]violation, len(found))
	for i, f := range found {
		_, path, _ := strings.Cut(f.Namespace(), ".")
		violations[i] = violation{path: mapPath(path), message: message(f)}
	}
	return violations
}

// violation is a rule that a decoded setting breaks.
type violation struct {
	path    string
	message string
}

// mapPath turns the library's columns[a] into columns.a; an index stays.
func mapPath(path string) string {
	before, rest, found := strings.Cut(path, "[")
	key := strings.TrimSuffix(rest, "]")
	if _, err := strconv.Atoi(key); !found || (err == nil && !strings.HasSuffix(before, ".columns")) {
		return path
	}
	return before + "." + key
}

// message says what a value should have been. It never repeats the value:
// the excerpt shows it where it may be shown.
func message(f validator.FieldError) string {
	text, _ := f.Value().(string)
	switch f.Tag() {
	case "required":
		return "is required"
	case "oneof":
		words := strings.Fields(f.Param())
		wants := "wants " + strings.Join(words[:len(words)-1], ", ")
		if len(words) > 1 {
			wants += " or "
		}
		wants += words[len(words)-1]
		if meant := suggest(text, words); meant != "" {
			wants += ", did you mean " + meant + "?"
		}
		return wants
	case "name":
		return "wants at most 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
	case "topic":
		return topicFault(text)
	case "instance":
		return "wants 1 to 249 letters, digits, dots, dashes and underscores"
	case "hostport":
		return "wants host:port, such as 127.0.0.1:9092"
	case "identifier":
		return identifierFault(text)
	case "source":
		return sourceFault(text)
	case "path":
		return "wants the path of a file, not its content"
	case "http_url":
		return "wants an http or https address"
	case "min", "gt":
		return atLeast(f)
	case "max":
		return "wants at most " + f.Param()
	}
	return "breaks the rule " + f.Tag()
}

func atLeast(f validator.FieldError) string {
	switch {
	case f.Kind() == reflect.Slice || f.Kind() == reflect.Map:
		return "wants at least one entry"
	case f.Tag() == "gt":
		return "wants more than " + f.Param()
	}
	return "wants at least " + f.Param()
}

func isTopicName(s string) bool { return topicName.MatchString(s) && s != "." && s != ".." }

// topicFault tells a pattern from a name with a wrong character.
func topicFault(topic string) string {
	if strings.ContainsAny(topic, `^$*+?()[]{}|\`) {
		return "topic patterns are not supported: name each topic"
	}
	return "a topic's name is 1 to 249 letters, digits, dots, dashes and underscores"
}

// identifierFault checks a name Postgres has to keep whole.
func identifierFault(name string) string {
	switch {
	case strings.ContainsRune(name, 0):
		return "holds a NUL character, which Postgres cannot keep"
	case len(name) > maxIdentifier:
		return fmt.Sprintf("is %d bytes long; Postgres cuts names at %d", len(name), maxIdentifier)
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	}
	return ""
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /@,") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// sourceFault says why a column or key source cannot be read, if it cannot.
func sourceFault(source string) string {
	if _, err := decode.ParseSource(source); err != nil {
		return err.Error()
	}
	return ""
}
