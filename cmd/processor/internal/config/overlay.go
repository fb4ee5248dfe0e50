package config

import (
	"reflect"
	"slices"
	"strings"
)

// envPrefix begins the variables that are settings.
const envPrefix = "EFFECTONCE_"

// overlayEnv lays EFFECTONCE_KAFKA__BROKERS and its like over the file. A
// variable with a double underscore must name a setting; one without is a
// setting only if it names one of the top level, since the prefix is also
// used for other things (EFFECTONCE_DSN in the sample, for one).
func overlayEnv(root *node, environ []string) {
	vars := slices.Sorted(slices.Values(environ))
	top := settingNames(reflect.TypeFor[Config]())
	for _, v := range vars {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || rest == "" {
			continue
		}
		path := strings.Split(strings.ToLower(rest), "__")
		if len(path) == 1 && !slices.Contains(top, path[0]) {
			continue
		}
		root.put(path, looseScalar(value, Origin{Kind: FromEnv, Name: name}))
	}
}

// overlaySet lays --set a.b=c over that.
func overlaySet(root *node, sets []string) Faults {
	var faults Faults
	for _, set := range sets {
		path, value, ok := strings.Cut(set, "=")
		origin := Origin{Kind: FromSet, Name: "--set " + path}
		if !ok || path == "" || slices.Contains(strings.Split(path, "."), "") {
			// What was given is not repeated: it may be a secret in the wrong place.
			origin.Name = "--set"
			faults = append(faults, Fault{Origin: origin, Message: "wants setting=value, such as --set kafka.group=orders"})
			continue
		}
		root.put(strings.Split(path, "."), looseScalar(value, origin))
	}
	return faults
}

// Override is a setting given by a flag of its own.
type Override struct {
	Path  string // such as log.level
	Value string
	Flag  string // such as --log-level
}

// overlayFlags lays the flags over everything.
func overlayFlags(root *node, flags []Override) {
	for _, f := range flags {
		root.put(strings.Split(f.Path, "."), looseScalar(f.Value, Origin{Kind: FromFlag, Name: f.Flag}))
	}
}

func looseScalar(value string, origin Origin) *node {
	return &node{shape: shapeScalar, origin: origin, text: value, loose: true}
}
