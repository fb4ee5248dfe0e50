package decode

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Limits bound what one document may cost. A zero field means its default, a
// document beyond a limit is a fault of that record.
type Limits struct {
	Bytes   int // length of the document in bytes; default 16 MiB; fault too_large
	Depth   int // objects and arrays inside one another, the document being the first; default 128, at most 10,000; fault too_deep
	Members int // members of one object; default 10,000; fault too_many_members
}

const (
	defaultBytes   = 16 << 20
	defaultDepth   = 128
	defaultMembers = 10_000
	maxDepth       = 10_000 // where the token reader itself stops
)

// Plan is a compiled list of sources. It is immutable: any number of goroutines
// may share it, each with a [Decoder] of its own.
type Plan struct {
	sources []Source
	limits  Limits
	outside []int // sources that are not in the document
	root    *node // the document's own node; nil when no source is in it
}

// New compiles sources; a source may be there twice. The error lists every
// source and limit that cannot work.
func New(sources []Source, limits Limits) (*Plan, error) {
	p := &Plan{
		sources: slices.Clone(sources),
		limits: Limits{
			Bytes:   cmp.Or(limits.Bytes, defaultBytes),
			Depth:   cmp.Or(limits.Depth, defaultDepth),
			Members: cmp.Or(limits.Members, defaultMembers),
		},
	}
	faults := p.limits.check()
	for i, s := range p.sources {
		if err := s.check(); err != nil {
			faults = append(faults, fmt.Errorf("source %d (%s): %w", i+1, s, err))
			continue
		}
		if len(s.Path) > p.limits.Depth {
			faults = append(faults, fmt.Errorf("source %d (%s): %d levels are more than the depth limit of %d",
				i+1, s, len(s.Path), p.limits.Depth))
			continue
		}
		p.add(i, s)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if p.root != nil {
		p.root.seal()
	}
	return p, nil
}

func (p *Plan) add(i int, s Source) {
	if s.From != Field && s.From != Document {
		p.outside = append(p.outside, i)
		return
	}
	if p.root == nil {
		p.root = new(node)
	}
	n := p.root
	for _, name := range s.Path {
		n = n.grow(name)
	}
	n.takers = append(n.takers, i)
}

func (l Limits) check() []error {
	var faults []error
	if l.Bytes < 0 {
		faults = append(faults, fmt.Errorf("limit of %d bytes is negative", l.Bytes))
	}
	if l.Depth < 0 || l.Depth > maxDepth {
		faults = append(faults, fmt.Errorf("depth limit %d is not between 1 and %d", l.Depth, maxDepth))
	}
	if l.Members < 0 {
		faults = append(faults, fmt.Errorf("limit of %d members is negative", l.Members))
	}
	return faults
}

// node is one member name on the way of some path. It may be both taken whole
// and descended into: order as JSON beside order.id.
type node struct {
	name     string
	takers   []int // values that are this member
	children []*node
	byName   map[string]*node // set by seal where comparing one by one is slower
}

// A nil node is a member that no path goes through.

func (n *node) taken() bool { return n != nil && len(n.takers) > 0 }
func (n *node) inner() bool { return n != nil && len(n.children) > 0 }

// fewChildren is where a map look-up begins to beat comparing the names.
const fewChildren = 8

func (n *node) grow(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name}
	n.children = append(n.children, c)
	return c
}

func (n *node) seal() {
	if len(n.children) > fewChildren {
		n.byName = make(map[string]*node, len(n.children))
	}
	for _, c := range n.children {
		if n.byName != nil {
			n.byName[c.name] = c
		}
		c.seal()
	}
}

// child is the node of a member.
func (n *node) child(name []byte) *node {
	if n.byName != nil {
		return n.byName[string(name)]
	}
	for _, c := range n.children {
		if c.name == string(name) {
			return c
		}
	}
	return nil
}
