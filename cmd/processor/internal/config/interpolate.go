package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// maxSecretFile bounds what ${file:…} reads.
const maxSecretFile = 64 << 10

// lookup is where interpolation finds its values.
type lookup struct {
	env  func(name string) (string, bool)
	file func(path string) ([]byte, error)
}

// references says what kinds of ${…} a scalar held.
type references struct {
	any  bool
	file bool
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// interpolate replaces ${VAR}, ${VAR:-default}, ${VAR:?why} and ${file:PATH}
// in a scalar that was already parsed, and $$ by $. What it puts in is never
// looked at again, neither for ${…} nor as YAML. An error names the variable
// or the path, never a value.
func interpolate(text string, from lookup) (string, references, error) {
	var found references
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "$")
		out.WriteString(before)
		switch {
		case !ok:
			return out.String(), found, nil
		case strings.HasPrefix(rest, "$"):
			found.any = true
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{"):
			inner, after, closed := strings.Cut(rest[1:], "}")
			if !closed {
				return "", found, errors.New("${ without its }; write $${ for the characters themselves")
			}
			value, file, err := resolve(inner, from)
			if err != nil {
				return "", found, err
			}
			found.any, found.file = true, found.file || file
			out.WriteString(value)
			text = after
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// resolve gives the value of what stands between the braces.
func resolve(inner string, from lookup) (value string, file bool, err error) {
	if path, ok := strings.CutPrefix(inner, "file:"); ok {
		content, err := from.file(path)
		if err != nil {
			return "", true, fmt.Errorf("${file:%s}: %w", path, pathReason(err))
		}
		return string(bytes.TrimRight(content, "\r\n")), true, nil
	}
	name, op, operand := inner, "", ""
	if i := strings.Index(inner, ":"); i >= 0 {
		name, op, operand = inner[:i], inner[i:min(i+2, len(inner))], inner[min(i+2, len(inner)):]
	}
	if !variableName.MatchString(name) || (op != "" && op != ":-" && op != ":?") {
		return "", false, errors.New("wants ${VAR}, ${VAR:-default}, ${VAR:?why} or ${file:PATH}")
	}
	if strings.Contains(operand, "${") {
		return "", false, fmt.Errorf("${%s%s…}: a ${…} inside another is not supported", name, op)
	}
	value, set := from.env(name)
	switch {
	case value != "" || (set && op == ""):
		return value, false, nil
	case op == ":-":
		return operand, false, nil
	case op == ":?" && operand != "":
		return "", false, fmt.Errorf("%s is not set: %s", name, operand)
	default:
		return "", false, fmt.Errorf("the environment variable %s is not set", name)
	}
}

// readSecret reads a file named by ${file:…}.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	content, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxSecretFile {
		return nil, errors.New("larger than 64 KiB")
	}
	return content, nil
}

// pathReason drops the path from an error that repeats it.
func pathReason(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Err
	}
	return err
}
