package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// YAML writes the merged settings as a file that could be loaded again, but
// for its secrets, with a comment at each that says where it came from.
func (l *Loaded) YAML() ([]byte, error) {
	comments := yaml.CommentMap{}
	tree := l.tree(reflect.ValueOf(l.Config), "", func(path, origin string) {
		comments[yamlPath(path)] = []*yaml.Comment{yaml.HeadComment(" " + origin)}
	})
	out, err := yaml.MarshalWithOptions(tree, yaml.WithComment(comments), yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("settings to yaml: %w", err)
	}
	return out, nil
}

// Printout is the merged settings for programs.
type Printout struct {
	Config  map[string]any    `json:"config"`
	Origins map[string]string `json:"origins"`
}

// Printout gives the merged settings, secrets masked, and the origin of each.
func (l *Loaded) Printout() Printout {
	origins := map[string]string{}
	tree := l.tree(reflect.ValueOf(l.Config), "", func(path, origin string) { origins[path] = origin })
	return Printout{Config: plainMap(tree), Origins: origins}
}

// tree copies the settings that have a value, with secrets masked, in the
// order of the file, and tells note about each single one.
func (l *Loaded) tree(v reflect.Value, path string, note func(path, origin string)) yaml.MapSlice {
	var out yaml.MapSlice
	for i := range v.NumField() {
		name, field := settingName(v.Type().Field(i)), v.Field(i)
		inner := join(path, name)
		var value any
		switch {
		case field.Kind() == reflect.Struct && !isScalar(field.Type()):
			group := l.tree(field, inner, note)
			if len(group) == 0 {
				continue
			}
			out = append(out, yaml.MapItem{Key: name, Value: group})
			continue
		case field.Kind() == reflect.Map:
			value = l.table(field, inner)
		case field.Kind() == reflect.Slice:
			value = l.list(field, inner)
		case field.IsZero() && l.Origin(inner).Kind == FromDefault:
			continue
		default:
			value = l.shown(field, inner)
		}
		if value == nil {
			continue
		}
		note(inner, l.Origin(inner).String())
		out = append(out, yaml.MapItem{Key: name, Value: value})
	}
	return out
}

func (l *Loaded) list(v reflect.Value, path string) any {
	if sources, ok := reflect.TypeAssert[Sources](v); ok && len(sources) == 0 {
		return Coordinates
	}
	if v.Len() == 0 {
		return nil
	}
	items := make([]any, v.Len())
	for i := range items {
		items[i] = l.shown(v.Index(i), path+"["+strconv.Itoa(i)+"]")
	}
	return items
}

func (l *Loaded) table(v reflect.Value, path string) any {
	var out yaml.MapSlice
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, k := range keys {
		out = append(out, yaml.MapItem{Key: k, Value: l.shown(v.MapIndex(reflect.ValueOf(k)), join(path, k))})
	}
	if out == nil {
		return nil
	}
	return out
}

// shown is a single value as it may be printed.
func (l *Loaded) shown(v reflect.Value, path string) any {
	if l.Origin(path).Secret {
		return Mask
	}
	if m, ok := reflect.TypeAssert[encoding.TextMarshaler](v); ok {
		text, err := m.MarshalText()
		if err != nil {
			return Mask
		}
		return string(text)
	}
	return v.Interface()
}

// plainMap drops the order, for JSON.
func plainMap(tree yaml.MapSlice) map[string]any {
	out := make(map[string]any, len(tree))
	for _, item := range tree {
		name := fmt.Sprint(item.Key)
		if group, ok := item.Value.(yaml.MapSlice); ok {
			out[name] = plainMap(group)
			continue
		}
		out[name] = item.Value
	}
	return out
}

// yamlPath is a setting's path as the YAML library writes it.
func yamlPath(path string) string { return "$." + strings.TrimPrefix(path, ".") }
