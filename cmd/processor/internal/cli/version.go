package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what the program knows of itself.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Dirty    bool   `json:"dirty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print version, revision and platform", Args: cobra.NoArgs}
	out := BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		b := readBuild()
		if asJSON {
			return WriteJSON(cmd.OutOrStdout(), b)
		}
		dirty := ""
		if b.Dirty {
			dirty = " (with local changes)"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "processor %s\nrevision %s%s\n%s %s\n", b.Version, b.Revision, dirty, b.Go, b.Platform)
		return err
	}
	return cmd
}

// readBuild reads what the Go tool wrote into the binary.
func readBuild() build {
	b := build{Version: "unknown", Revision: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Dirty = s.Value == "true"
		}
	}
	return b
}
