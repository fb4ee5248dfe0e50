package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds a configuration file; a pipeline's is a few kilobytes.
const maxFile = 1 << 20

// maxDepth and maxNodes bound what a file may unfold to, aliases included: a
// few lines of aliases of aliases are a billion values.
const (
	maxDepth = 64
	maxNodes = 100_000
)

// document turns the text of a file into nodes and remembers its lines.
type document struct {
	name    string
	lines   [][]rune
	tokens  token.Tokens
	anchors map[string]ast.Node
	keys    map[*token.Token]bool   // tokens that are keys
	values  map[*token.Token]string // tokens that are values, and of which setting
	nodes   int

	tooLarge bool // said once
	lookup   lookup
	faults   Faults
}

func newDocument(name string, from lookup) *document {
	return &document{
		name: name, lookup: from,
		anchors: map[string]ast.Node{}, keys: map[*token.Token]bool{}, values: map[*token.Token]string{},
	}
}

// parse reads the text. Faults of syntax end the reading; everything else is
// collected, so that one run shows all of it.
func (d *document) parse(text []byte) *node {
	if len(text) > maxFile {
		d.fault(Origin{Kind: FromFile, Name: d.name}, "", "the file is larger than 1 MiB")
		return nil
	}
	for line := range strings.Lines(string(text)) {
		d.lines = append(d.lines, []rune(strings.TrimRight(line, "\r\n")))
	}
	file, err := d.syntax(string(text))
	if err != nil {
		d.syntaxFault(err)
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType && doc.Body.Type() != ast.CommentGroupType {
			bodies = append(bodies, doc.Body)
		}
	}
	start := Origin{Kind: FromFile, Name: d.name, Line: 1, Column: 1}
	switch len(bodies) {
	case 0:
		return &node{shape: shapeObject, origin: start}
	case 1:
	default:
		d.fault(d.at(bodies[1].GetToken()), "", "a second document begins here: a file holds one pipeline")
	}
	root := d.node(bodies[0], "", 0)
	switch root.shape {
	case shapeNull:
		root.shape = shapeObject
	case shapeObject:
	default:
		d.fault(root.origin, "", "wants settings, found "+root.shape.String())
		return nil
	}
	root.origin = start
	for i, f := range d.faults {
		d.faults[i].Excerpt = d.excerpt(f.Origin) // by now it is known what all values of the line are
	}
	return root
}

// syntax runs the YAML reader. The reader is trusted with positions but not
// with arbitrary bytes: a panic in it is a fault of the file.
func (d *document) syntax(text string) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("this is not YAML that can be read")
		}
	}()
	d.tokens = lexer.Tokenize(text)
	return parser.Parse(d.tokens, 0, parser.AllowDuplicateMapKey())
}

// syntaxFault reports the reader's complaint. Its own excerpt is not used: it
// would print neighbouring lines, and they may hold secrets.
func (d *document) syntaxFault(err error) {
	origin, message := Origin{Kind: FromFile, Name: d.name}, err.Error()
	if syntax, ok := errors.AsType[yaml.Error](err); ok {
		message = syntax.GetMessage()
		if tk := syntax.GetToken(); tk != nil {
			origin = d.at(tk)
		}
	}
	if origin.Line > 0 && origin.Line <= len(d.lines) && strings.Contains(string(d.lines[origin.Line-1]), "${") {
		message += " (inside { } or [ ], a ${…} wants quotes)"
	}
	d.faults = append(d.faults, Fault{Origin: origin, Message: message, Excerpt: d.keyExcerpt(origin)})
}

// at gives a token's place, within the text even where the reader's count is off.
func (d *document) at(tk *token.Token) Origin {
	o := Origin{Kind: FromFile, Name: d.name, Line: 1, Column: 1}
	if tk == nil || tk.Position == nil {
		return o
	}
	o.Line = max(1, min(tk.Position.Line, len(d.lines)))
	o.Column = max(1, tk.Position.Column)
	return o
}

func (d *document) fault(at Origin, path, message string) {
	d.faults = append(d.faults, Fault{Path: path, Origin: at, Message: message, Excerpt: d.excerpt(at)})
}

// node converts one value; path is for messages.
func (d *document) node(n ast.Node, path string, depth int) *node {
	null := &node{origin: d.at(n.GetToken())}
	if d.nodes++; depth > maxDepth || d.nodes > maxNodes {
		if !d.tooLarge {
			d.fault(null.origin, path, "nested too deeply, or too many values")
		}
		d.tooLarge = true
		return null
	}
	switch v := n.(type) {
	case *ast.AnchorNode:
		if v.Value == nil {
			return null
		}
		value := d.node(v.Value, path, depth+1)
		d.anchors[v.Name.GetToken().Value] = v.Value // behind its value: it cannot hold itself
		return value
	case *ast.AliasNode:
		return d.alias(v, path, depth)
	case *ast.MappingNode:
		return d.object(v.Values, path, null.origin, depth)
	case *ast.MappingValueNode:
		return d.object([]*ast.MappingValueNode{v}, path, null.origin, depth)
	case *ast.SequenceNode:
		list := &node{shape: shapeList, origin: null.origin}
		for i, item := range v.Values {
			list.items = append(list.items, d.node(item, fmt.Sprintf("%s[%d]", path, i), depth+1))
		}
		return list
	case *ast.NullNode:
		return null
	case *ast.TagNode:
		d.fault(null.origin, path, "tags such as "+v.GetToken().Value+" are not supported")
		return null
	}
	return d.scalar(n, path)
}

func (d *document) alias(v *ast.AliasNode, path string, depth int) *node {
	at := d.at(v.GetToken())
	target, known := d.anchors[v.Value.GetToken().Value]
	if !known {
		d.fault(at, path, "no anchor of this name stands above")
		return &node{origin: at}
	}
	copied := d.node(target, path, depth+1)
	copied.origin.Line, copied.origin.Column = at.Line, at.Column
	return copied
}

func (d *document) object(values []*ast.MappingValueNode, path string, at Origin, depth int) *node {
	object := &node{shape: shapeObject, origin: at}
	for _, v := range values {
		tk := v.Key.GetToken()
		keyAt := d.at(tk)
		d.keys[tk] = true
		if v.Key.IsMergeKey() {
			d.fault(keyAt, path, "merge keys (<<) are not supported: write the settings out")
			continue
		}
		if _, explicit := v.Key.(*ast.MappingKeyNode); explicit {
			d.fault(keyAt, path, "keys written with ? are not supported")
			continue
		}
		key := tk.Value
		inner := join(path, key)
		if earlier := object.get(key); earlier != nil {
			d.fault(keyAt, inner, fmt.Sprintf("set twice, the first time in line %d", earlier.origin.Line))
			continue
		}
		value := &node{origin: keyAt}
		if v.Value != nil {
			value = d.node(v.Value, inner, depth+1)
		}
		if value.shape == shapeObject {
			value.origin = keyAt // a group has no place of its own
		}
		object.fields = append(object.fields, &field{key: key, origin: keyAt, value: value})
	}
	return object
}

// scalar takes the text as it is written, not as the reader would type it, so
// that 0123 stays a password and a number's digits stay exact.
func (d *document) scalar(n ast.Node, path string) *node {
	tk := n.GetToken()
	s := &node{shape: shapeScalar, origin: d.at(tk)}
	if tk != nil {
		d.values[tk] = path
		s.text = tk.Value
		s.quoted = tk.Type == token.DoubleQuoteType || tk.Type == token.SingleQuoteType
	}
	if literal, ok := n.(*ast.LiteralNode); ok {
		s.text, s.quoted = literal.Value.Value, true
	}
	text, found, err := interpolate(s.text, d.lookup)
	if err != nil {
		d.fault(s.origin, path, err.Error())
		s.shape = shapeNull
		return s
	}
	s.text = text
	s.quoted = s.quoted && !found.any
	s.origin.Secret = found.file
	return s
}

// join appends a member to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
