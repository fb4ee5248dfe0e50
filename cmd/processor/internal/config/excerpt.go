package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// excerpt shows one line of the file with a caret below. It errs on the side
// of hiding: a value is shown only if it belongs to a known setting that holds
// no secret, comments are cut, and what the tokens do not explain is masked.
func (d *document) excerpt(at Origin) string {
	if at.Line < 1 || at.Line > len(d.lines) {
		return ""
	}
	line := d.lines[at.Line-1]
	var out strings.Builder
	width, caret, next := 0, -1, 0
	for _, tk := range d.tokens {
		if tk.Position == nil || tk.Position.Line != at.Line {
			continue
		}
		column := tk.Position.Column - 1
		if column < next || column > len(line) || tk.Type == token.CommentType {
			break
		}
		gap := blanks(line[next:column])
		if column >= at.Column-1 && caret < 0 {
			caret = width + gap
		}
		text := strings.TrimSpace(tk.Origin)
		next = min(len(line), column+len([]rune(text)))
		if !d.showable(tk) || strings.ContainsAny(text, "\n@") {
			text = Mask // an @ may follow a password, as in a URL
		}
		if text == Mask && gap == 0 && strings.HasSuffix(out.String(), Mask) {
			continue
		}
		out.WriteString(strings.Repeat(" ", gap) + text)
		width += gap + len([]rune(text))
	}
	if caret < 0 {
		return ""
	}
	return frame(at.Line, out.String(), caret)
}

// keyExcerpt shows only the key of a line, for files whose syntax is broken:
// there, what looks like anything else may be a secret.
func (d *document) keyExcerpt(at Origin) string {
	if at.Line < 1 || at.Line > len(d.lines) {
		return ""
	}
	key, _, found := strings.Cut(string(d.lines[at.Line-1]), ":")
	name := strings.TrimLeft(key, " -")
	if !found || len(settingsNamed(name)) == 0 {
		return ""
	}
	return frame(at.Line, key+": "+Mask, len([]rune(key))-len([]rune(name)))
}

func frame(number int, line string, caret int) string {
	gutter := fmt.Sprintf("%4d", number)
	return gutter + " | " + line + "\n" + strings.Repeat(" ", len(gutter)) + " | " + strings.Repeat(" ", caret) + "^"
}

// blanks is how many spaces stand in the gap between two tokens.
func blanks(gap []rune) int {
	n := 0
	for _, r := range gap {
		n += btoi(r == ' ')
	}
	return n
}

// showable reports whether a token may be printed.
func (d *document) showable(tk *token.Token) bool {
	switch tk.Type {
	case token.MappingValueType, token.CollectEntryType, token.SequenceEntryType, token.MappingStartType, token.MappingEndType,
		token.SequenceStartType, token.SequenceEndType:
		return true
	}
	if d.keys[tk] {
		return true
	}
	path, known := d.values[tk]
	return known && !holdsSecret(path)
}

// holdsSecret reports whether a setting's value must not be shown. What is no
// setting is taken for a misspelt secret.
func holdsSecret(path string) bool {
	path, _, _ = strings.Cut(path, "[")
	secret := true
	walkTypes(reflect.TypeFor[Config](), "", func(known string, f reflect.StructField) {
		isMap := f.Type.Kind() == reflect.Map && strings.HasPrefix(path, known+".")
		if (known == path || isMap) && f.Type != reflect.TypeFor[Secret]() && f.Type != reflect.TypeFor[DSN]() {
			secret = false
		}
	})
	return secret
}
