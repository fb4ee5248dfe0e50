package config

import _ "embed"

//go:embed sample.yaml
var sample []byte

// Sample is a commented configuration file to begin with. It is valid once
// the variables it names are set.
func Sample() []byte { return sample }
