package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// SchemaURL is where the schema of the newest release can be fetched; the
// sample names it for editors.
const SchemaURL = "./effectonce.schema.json"

// interpolated matches a scalar that holds a ${…}, which may stand for a value
// of any type.
const interpolated = `\$\{`

// Schema is the JSON schema of a configuration file, for editors and checks.
// It is made of the same structs and rules that Load uses; Load checks more.
func Schema() (*jsonschema.Schema, error) {
	text := func() *jsonschema.Schema { return &jsonschema.Schema{Types: []string{"string", "number", "boolean"}} }
	s, err := jsonschema.For[Config](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Duration](): {Type: "string", Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|` + interpolated},
		reflect.TypeFor[Size]():     {Types: []string{"string", "integer"}, Pattern: `^[0-9]+ *([KMG]i?B|kB|B)?$|` + interpolated},
		reflect.TypeFor[Start]():    {Type: "string"},
		reflect.TypeFor[Secret]():   text(),
		reflect.TypeFor[DSN]():      {Type: "string"},
		reflect.TypeFor[Sources]():  {Types: []string{"string", "array"}, Items: &jsonschema.Schema{Type: "string"}},
	}})
	if err != nil {
		return nil, fmt.Errorf("schema of the settings: %w", err)
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "effectonce pipeline"
	defaults := Default()
	refine(s, reflect.ValueOf(defaults))
	return s, nil
}

// refine adds what only the rules and the defaults know: the words of an
// enumeration, bounds, default values, and that any scalar may be a ${…}.
func refine(s *jsonschema.Schema, v reflect.Value) {
	if s.Type == "object" {
		// A group without a value is a group that was not set.
		s.Types, s.Type = []string{"object", "null"}, ""
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		field := s.Properties[settingName(f)]
		if field == nil {
			continue
		}
		if f.Type.Kind() == reflect.Struct && !isScalar(f.Type) {
			refine(field, v.Field(i))
			continue
		}
		rules := strings.Split(f.Tag.Get("validate"), ",")
		switch {
		case f.Type.Kind() == reflect.Map:
			field.Types, field.Type = []string{"object", "null"}, ""
		case field.Type == "integer":
			bounds(field, rules)
			either(field)
		case field.Type == "boolean":
			either(field)
		case f.Type.Kind() == reflect.String:
			words(field, rules)
		}
		if !v.Field(i).IsZero() {
			field.Default = []byte(strconv.Quote(fmt.Sprint(v.Field(i).Interface())))
			if f.Type.Kind() == reflect.Int {
				field.Default = []byte(fmt.Sprint(v.Field(i).Interface()))
			}
		}
	}
}

// words allows the words of a oneof rule, or a ${…}.
func words(s *jsonschema.Schema, rules []string) {
	s.Type, s.Types = "", []string{"string", "number", "boolean"}
	for _, rule := range rules {
		if list, ok := strings.CutPrefix(rule, "oneof="); ok {
			enum := &jsonschema.Schema{}
			for word := range strings.FieldsSeq(list) {
				enum.Enum = append(enum.Enum, word)
			}
			s.Types = nil
			s.AnyOf = []*jsonschema.Schema{enum, {Type: "string", Pattern: interpolated}}
		}
	}
}

func bounds(s *jsonschema.Schema, rules []string) {
	for _, rule := range rules {
		name, value, _ := strings.Cut(rule, "=")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch name {
		case "min":
			s.Minimum = &n
		case "max":
			s.Maximum = &n
		}
	}
}

// either allows a ${…} in place of a number or a boolean.
func either(s *jsonschema.Schema) {
	typed := &jsonschema.Schema{Type: s.Type, Minimum: s.Minimum, Maximum: s.Maximum}
	s.Type, s.Minimum, s.Maximum = "", nil, nil
	s.AnyOf = []*jsonschema.Schema{typed, {Type: "string", Pattern: interpolated}}
}
