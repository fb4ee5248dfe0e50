package model

// rename gives all ids small numbers, in the order in which they are met: states
// that differ in nothing but the drawing of ids are one state. It is what makes the
// search finite, since takeovers and retries draw without end.
func (s *state) rename() {
	var r renaming
	r.database(&s.DB)
	r.database(&s.Replica)
	for i := range s.Members {
		r.member(&s.Members[i])
	}
}

const (
	owners = iota
	runs
	manifests
	segments
	kinds
)

type renaming struct {
	names [kinds][fresh + 1]id
	next  [kinds]id
}

func (r *renaming) id(kind int, x *id) {
	if *x == 0 {
		return
	}
	name := &r.names[kind][*x]
	if *name == 0 {
		r.next[kind]++
		*name = r.next[kind]
	}
	*x = *name
}

func (r *renaming) database(d *database) {
	for p := range d.Owner {
		r.id(owners, &d.Owner[p])
	}
	for i := range d.Runs {
		r.id(runs, &d.Runs[i].ID)
	}
	r.id(manifests, &d.Manifest)
	for i := range d.Segments {
		r.id(segments, &d.Segments[i].ID)
	}
}

func (r *renaming) member(m *member) {
	r.id(owners, &m.Once)
	for i := range m.Claims {
		r.id(owners, &m.Claims[i].Owner)
	}
	r.id(runs, &m.View.HeadID)
	r.id(runs, &m.Batch.HeadID)
	r.id(runs, &m.Load.HeadID)
	r.id(manifests, &m.View.Manifest)
	r.id(manifests, &m.Load.Manifest)
	r.id(manifests, &m.Work.Manifest)
	r.id(manifests, &m.Work.Given)
	r.id(segments, &m.Work.Segment)
	for i := range m.Load.Segments {
		r.id(segments, &m.Load.Segments[i])
		r.id(segments, &m.Work.Inputs[i])
	}
}
