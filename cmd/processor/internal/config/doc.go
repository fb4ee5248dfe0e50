// Package config is the one place where a pipeline's settings are read: from
// the YAML file, the environment, --set and flags, in that order of rising
// precedence. Load reports every fault it finds at once, each with its line
// and column, and no fault, excerpt or print ever shows a secret.
//
// The structs in this package are also the source of the JSON schema that
// editors use, so a setting is described where it is declared.
package config
