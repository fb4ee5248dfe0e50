package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoder fills a struct from nodes and collects what does not fit.
type decoder struct {
	doc     *document
	origins map[string]Origin
	faults  Faults
	secrets []string        // values that came from ${file:…}
	bad     map[string]bool // settings that already have a fault, or were meant by a misspelt one
}

func (d *decoder) fault(at Origin, path, format string, args ...any) {
	d.bad[path] = true
	f := Fault{Path: path, Origin: at, Message: fmt.Sprintf(format, args...)}
	if at.Kind == FromFile {
		f.Excerpt = d.doc.excerpt(at)
	}
	d.faults = append(d.faults, f)
}

// value decodes one node into a field. Nothing there leaves the default.
func (d *decoder) value(n *node, into reflect.Value, path string) {
	if n.shape == shapeNull {
		return
	}
	group := into.Kind() == reflect.Struct && !isScalar(into.Type())
	if !group || n.origin.Kind == FromFile {
		// What is missing from a group is looked for in the file, even where
		// the environment began the group.
		d.origins[path] = n.origin
	}
	if group {
		d.object(n, into, path)
		return
	}
	switch {
	case isScalar(into.Type()):
		d.scalar(n, into, path)
	case into.Kind() == reflect.Slice:
		d.list(n, into, path)
	case into.Kind() == reflect.Map:
		d.table(n, into, path)
	}
}

// object decodes the members of a group of settings.
func (d *decoder) object(n *node, into reflect.Value, path string) {
	if n.shape != shapeObject {
		d.fault(n.origin, path, "wants a group of settings, found %s", n.shape)
		return
	}
	for _, f := range n.fields {
		inner := join(path, f.key)
		i := fieldIndex(into.Type(), f.key)
		if i < 0 {
			d.unknown(f, into.Type(), path)
			continue
		}
		d.value(f.value, into.Field(i), inner)
	}
}

func (d *decoder) unknown(f *field, t reflect.Type, path string) {
	meant := suggest(f.key, settingNames(t))
	if meant != "" {
		d.bad[join(path, meant)] = true
		d.fault(f.origin, join(path, f.key), "unknown setting, did you mean %s?", meant)
		return
	}
	if elsewhere := settingsNamed(f.key); len(elsewhere) > 0 {
		d.fault(f.origin, join(path, f.key), "unknown setting here, did you mean %s?", strings.Join(elsewhere, " or "))
		return
	}
	d.fault(f.origin, join(path, f.key), "unknown setting")
}

// list decodes a list of texts.
func (d *decoder) list(n *node, into reflect.Value, path string) {
	items := n.items
	switch {
	case n.shape == shapeList:
	case n.shape == shapeScalar && n.loose:
		for part := range strings.SplitSeq(n.text, ",") {
			items = append(items, looseScalar(strings.TrimSpace(part), n.origin))
		}
	case n.shape == shapeScalar && into.Type() == reflect.TypeFor[Sources]():
		items = []*node{n}
	default:
		d.fault(n.origin, path, "wants a list, such as [a, b], found %s", n.shape)
		return
	}
	list := reflect.MakeSlice(into.Type(), len(items), len(items))
	for i, item := range items {
		inner := fmt.Sprintf("%s[%d]", path, i)
		d.origins[inner] = item.origin
		if item.shape != shapeScalar {
			if !d.bad[inner] {
				d.fault(item.origin, inner, "wants a text, found %s", item.shape)
			}
			continue
		}
		d.scalar(item, list.Index(i), inner)
		if item.origin.Secret {
			o := d.origins[path]
			o.Secret = true
			d.origins[path] = o
		}
	}
	into.Set(list)
}

// table decodes a mapping from free names to texts.
func (d *decoder) table(n *node, into reflect.Value, path string) {
	if n.shape != shapeObject {
		d.fault(n.origin, path, "wants a group of name: value, found %s", n.shape)
		return
	}
	table := reflect.MakeMapWithSize(into.Type(), len(n.fields))
	for _, f := range n.fields {
		inner := join(path, f.key)
		d.origins[inner] = f.origin
		if f.value.shape != shapeScalar {
			if !d.bad[inner] {
				d.fault(f.origin, inner, "wants a text, found %s", f.value.shape)
			}
			continue
		}
		text := reflect.New(into.Type().Elem()).Elem()
		d.origins[inner] = f.value.origin
		d.scalar(f.value, text, inner)
		table.SetMapIndex(reflect.ValueOf(f.key), text)
	}
	into.Set(table)
}

// scalar decodes one text by the type of its field.
func (d *decoder) scalar(n *node, into reflect.Value, path string) {
	if n.shape != shapeScalar {
		d.fault(n.origin, path, "wants a single value, found %s", n.shape)
		return
	}
	if n.origin.Secret && n.text != "" {
		d.secrets = append(d.secrets, n.text)
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](into.Addr()); ok {
		if err := u.UnmarshalText([]byte(n.text)); err != nil {
			d.fault(n.origin, path, "%v", err)
		}
		return
	}
	switch into.Kind() {
	case reflect.Bool:
		if n.quoted || (n.text != "true" && n.text != "false") {
			d.fault(n.origin, path, "wants true or false")
			return
		}
		into.SetBool(n.text == "true")
	case reflect.Int:
		v, err := strconv.Atoi(n.text)
		if n.quoted || err != nil {
			d.fault(n.origin, path, "wants a whole number")
			return
		}
		into.SetInt(int64(v))
	default:
		if strings.ContainsRune(n.text, 0) {
			d.fault(n.origin, path, "holds a NUL character")
			return
		}
		into.SetString(n.text)
	}
}

// isScalar reports whether a field is written as a single value.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.String:
		return true
	}
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// settingName is the name of a field in the file.
func settingName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

func settingNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = settingName(t.Field(i))
	}
	return names
}

func fieldIndex(t reflect.Type, name string) int {
	return slices.Index(settingNames(t), name)
}
