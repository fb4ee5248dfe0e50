//go:build !windows

package main

import (
	"os"
	"testing"

	"github.com/goccy/go-yaml"

	"effectonce/cmd/processor/internal/cli"
)

// The composition checked the processor's health by a command line that the program
// did not take: it was never healthy. Every command line of ours in it must parse.
func TestComposeCommandLinesParse(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var composition struct {
		Services map[string]struct {
			Image       string `yaml:"image"`
			Command     any    `yaml:"command"`
			Healthcheck struct {
				Test any `yaml:"test"`
			} `yaml:"healthcheck"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &composition); err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for name, s := range composition.Services {
		if s.Image != "effectonce/processor:local" {
			continue
		}
		parses(t, name, words(t, s.Command))
		lines[words(t, s.Command)[0]] = true
		if s.Healthcheck.Test != nil { // CMD, the program, its arguments
			args := words(t, s.Healthcheck.Test)[2:]
			parses(t, name, args)
			lines[args[0]] = true
		}
	}
	for _, verb := range []string{"run", "produce", "healthcheck"} {
		if !lines[verb] {
			t.Errorf("no command line with %s was found: %v", verb, lines)
		}
	}
}

func words(t *testing.T, list any) (out []string) {
	t.Helper()
	items, ok := list.([]any)
	if !ok {
		t.Fatalf("%v is no list of words", list)
	}
	for _, i := range items {
		w, ok := i.(string)
		if !ok {
			t.Fatalf("%v is no word", i)
		}
		out = append(out, w)
	}
	return out
}

// parses goes as far as the program does before the verb begins.
func parses(t *testing.T, service string, args []string) {
	t.Helper()
	cmd, rest, err := cli.Root(verbs()...).Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
		t.Errorf("service %s: %v: %v", service, args, err)
	}
}
