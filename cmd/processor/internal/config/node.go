package config

// shape is what a value looks like before it is known what it should be.
type shape int

const (
	shapeNull shape = iota
	shapeScalar
	shapeList
	shapeObject
)

func (s shape) String() string {
	switch s {
	case shapeNull:
		return "nothing"
	case shapeScalar:
		return "a single value"
	case shapeList:
		return "a list"
	default:
		return "a group of settings"
	}
}

// node is a value on its way from a source to a field.
type node struct {
	shape  shape
	origin Origin
	text   string // a scalar, after interpolation
	quoted bool   // a scalar in quotes without interpolation: text, never a number
	loose  bool   // from the environment or --set: a list may be written with commas
	items  []*node
	fields []*field
}

// field is one member of an object; origin is that of its key.
type field struct {
	key    string
	origin Origin
	value  *node
}

// get returns the member of that name, or nil.
func (n *node) get(key string) *field {
	for _, f := range n.fields {
		if f.key == key {
			return f
		}
	}
	return nil
}

// put sets the value at a path, making objects of what is in the way, so that
// a stronger layer always wins.
func (n *node) put(path []string, value *node) {
	if n.shape != shapeObject {
		n.shape, n.text, n.items, n.fields = shapeObject, "", nil, nil
		n.origin = value.origin
	}
	f := n.get(path[0])
	if f == nil {
		f = &field{key: path[0], origin: value.origin, value: &node{origin: value.origin}}
		n.fields = append(n.fields, f)
	}
	if len(path) == 1 {
		f.value, f.origin = value, value.origin
		return
	}
	f.value.put(path[1:], value)
}
