package config

import (
	"io"
	"os"
	"reflect"
	"strings"
)

// Options say where the settings come from, besides the defaults.
type Options struct {
	File    string     // path of the YAML file
	Environ []string   // as os.Environ returns it
	Set     []string   // the values of --set, in order
	Flags   []Override // settings that have a flag of their own
}

// Loaded is a configuration without faults, and where its values came from.
type Loaded struct {
	Config  Config
	origins map[string]Origin
}

// Load reads the settings. The error is a Faults with every fault at once, or
// says why the file could not be read; either way the process should exit
// with the code for configuration.
func Load(o Options) (*Loaded, error) {
	f, err := os.Open(o.File)
	if err != nil {
		return nil, Faults{{Origin: Origin{Kind: FromFile, Name: o.File}, Message: pathReason(err).Error()}}
	}
	defer f.Close() //nolint:errcheck // opened for reading
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, Faults{{Origin: Origin{Kind: FromFile, Name: o.File}, Message: pathReason(err).Error()}}
	}
	return load(text, o, lookup{env: environ(o.Environ), file: readSecret})
}

// load is Load on the text of a file.
func load(text []byte, o Options, from lookup) (*Loaded, error) {
	doc := newDocument(o.File, from)
	root := doc.parse(text)
	if root == nil {
		return nil, doc.faults
	}
	overlayEnv(root, o.Environ)
	faults := overlaySet(root, o.Set)
	overlayFlags(root, o.Flags)

	loaded := &Loaded{Config: Default(), origins: map[string]Origin{}}
	d := &decoder{doc: doc, origins: loaded.origins, bad: map[string]bool{}}
	for _, f := range doc.faults {
		d.bad[f.Path] = true
	}
	d.value(root, reflect.ValueOf(&loaded.Config).Elem(), "")
	loaded.Config.complete()

	faults = append(append(faults, doc.faults...), d.faults...)
	for _, v := range append(checkFields(&loaded.Config), checkRelations(&loaded.Config)...) {
		if d.settled(v.path) {
			continue
		}
		d.bad[v.path] = true
		at, whole := d.nearest(v.path)
		f := Fault{Path: v.path, Origin: at, Message: v.message}
		if at.Kind == FromFile && !whole {
			f.Excerpt = doc.excerpt(at)
		}
		faults = append(faults, f)
	}
	if len(faults) > 0 {
		d.scrub(faults)
		faults.sort()
		return nil, faults
	}
	return loaded, nil
}

// complete fills what follows from other settings.
func (c *Config) complete() {
	if c.Kafka.Group == "" {
		c.Kafka.Group = c.Pipeline
	}
	if len(c.Key) == 1 && c.Key[0] == Coordinates {
		c.Key = nil
	}
}

// settled reports whether a setting, one it is part of or one of its parts
// already has a fault: what follows from the first fault would only hide it.
func (d *decoder) settled(path string) bool {
	for bad := range d.bad {
		if strings.HasPrefix(bad, path+".") || strings.HasPrefix(bad, path+"[") {
			return true
		}
	}
	for path != "" {
		if d.bad[path] {
			return true
		}
		path = parent(path)
	}
	return false
}

// nearest is where a setting was written, or the group it is missing from,
// which may be the file as a whole.
func (d *decoder) nearest(path string) (at Origin, whole bool) {
	for ; path != ""; path = parent(path) {
		if o, ok := d.origins[path]; ok {
			return o, false
		}
	}
	return d.origins[""], true
}

func parent(path string) string {
	i := strings.LastIndexAny(path, ".[")
	if i < 0 {
		return ""
	}
	return path[:i]
}

// scrub takes values that came from ${file:…} out of messages that quote them.
func (d *decoder) scrub(faults Faults) {
	for i := range faults {
		for _, secret := range d.secrets {
			faults[i].Message = strings.ReplaceAll(faults[i].Message, secret, Mask)
			faults[i].Path = strings.ReplaceAll(faults[i].Path, secret, Mask)
		}
	}
}

// Origin says where a setting came from; what nobody set is a default.
func (l *Loaded) Origin(path string) Origin {
	if o, ok := l.origins[path]; ok {
		return o
	}
	if list, _, entry := strings.Cut(path, "["); entry {
		return l.Origin(list)
	}
	return Origin{Kind: FromDefault, Name: string(FromDefault)}
}

// environ makes a lookup of a list of NAME=value.
func environ(list []string) func(string) (string, bool) {
	vars := make(map[string]string, len(list))
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}
