package storm

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The picture's measures, in pixels.
const (
	left, right, top = 70, 20, 64
	plot             = 1500 // width of the time
	laneHeight       = 18
	rateHeight       = 90
	shortest         = 0.3 // seconds of a gap that is drawn and named
)

// slotColours are the members', told apart also by who sees little colour.
var slotColours = []string{
	"#4477aa", "#ddaa33", "#228833", "#aa3377", "#66ccee", "#999933", "#882255", "#44aa99", "#cc6677", "#117733", "#332288", "#88ccee",
	"#661100", "#6699cc", "#aa4466", "#4477aa", "#ddaa33",
}

var kindColours = map[string]string{join: "#228833", leave: "#4477aa", freeze: "#7744cc", kill: "#cc3311", restart: "#ee7733"}

// picture draws the timeline: a lane for each partition, coloured by the member that
// committed and the denser the more commits, gaps as lines through the lane's
// middle, events from top to bottom, and the rate below.
type picture struct {
	strings.Builder

	from, to time.Time
	lanes    int32
}

func (p *play) draw() []byte {
	d := &picture{from: p.phases[0].from, to: p.phases[len(p.phases)-1].to, lanes: p.partitions}
	height := d.bottom() + rateHeight + 60
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`, left+plot+right, height)
	d.printf(`<rect width="100%%" height="100%%" fill="#fff"/><text x="%d" y="16" font-size="14">%s: %d partitions, session %s, %s</text>`,
		left, p.protocol, p.partitions, p.session, "colour is the member that commits; a line is a gap, its text the seconds")
	d.legend(len(p.crew.slots))
	d.phases(p.phases)
	for part := range p.partitions {
		d.lane(part, &p.trail)
	}
	d.gaps(p.trail.gaps(p.weather.done))
	for _, ph := range p.phases {
		for _, e := range ph.events {
			d.event(e)
		}
	}
	d.rate(&p.trail)
	d.WriteString("</svg>\n")
	return []byte(d.String())
}

func (d *picture) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(d, format+"\n", args...) // a builder takes everything
}

func (d *picture) bottom() int { return top + int(d.lanes)*laneHeight }

// x is where a moment lies.
func (d *picture) x(t time.Time) float64 {
	return left + plot*float64(t.Sub(d.from))/float64(d.to.Sub(d.from))
}

func (d *picture) y(part int32) int { return top + int(part)*laneHeight }

func (d *picture) legend(slots int) {
	x := left
	for s := range slots {
		d.printf(`<rect x="%d" y="24" width="11" height="11" fill="%s"/><text x="%d" y="33">member %d</text>`, x, slotColours[s%len(slotColours)], x+15, s)
		x += 90
	}
	for _, k := range []string{join, leave, freeze, kill, restart} {
		d.printf(`<path d="M%d 24v11" stroke="%s" stroke-width="2"/><text x="%d" y="33">%s</text>`, x, kindColours[k], x+6, k)
		x += 60
	}
}

func (d *picture) phases(all []phase) {
	for i, ph := range all {
		fill := "#f6f6f6"
		if i%2 == 1 {
			fill = "#ececec"
		}
		x := d.x(ph.from)
		d.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d" fill="#555">%s</text>`,
			x, top, d.x(ph.to)-x, d.bottom()-top+rateHeight+20, fill, x+2, top-6, ph.name)
	}
	for s := 0.0; s <= d.to.Sub(d.from).Seconds(); s += 30 {
		x := left + plot*s/d.to.Sub(d.from).Seconds()
		d.printf(`<text x="%.1f" y="%d" fill="#555" text-anchor="middle">%.0f s</text>`, x, d.bottom()+rateHeight+36, s)
	}
}

// lane draws the commits of a partition in columns of a pixel, and joins columns of
// one member and one density.
func (d *picture) lane(part int32, t *trail) {
	y := d.y(part)
	d.printf(`<text x="%d" y="%d" text-anchor="end">%d</text>`, left-8, y+laneHeight-5, part)
	var columns [plot]struct{ commits, slot int }
	for _, c := range t.of(part) {
		if at := int(d.x(c.at)) - left; at >= 0 && at < plot {
			columns[at].commits++
			columns[at].slot = t.claims[c.claim].slot
		}
	}
	density := func(n int) int { return int(math.Ceil(3 * (1 - math.Exp(-float64(n)/8)))) } // 0 to 3
	for from := 0; from < plot; {
		to := from
		for to < plot && columns[to].slot == columns[from].slot && density(columns[to].commits) == density(columns[from].commits) {
			to++
		}
		if n := density(columns[from].commits); n > 0 {
			d.printf(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s" fill-opacity="%.2f"/>`,
				left+from, y+2, to-from, laneHeight-4, slotColours[columns[from].slot%len(slotColours)], 0.4+0.2*float64(n))
		}
		from = to
	}
}

// gaps draws those one can see as lines, long ones with their seconds. Hovering
// tells the rest.
func (d *picture) gaps(all []gap) {
	for _, g := range all {
		if g.seconds() < shortest || g.to.Before(d.from) || g.from.After(d.to) {
			continue
		}
		x, end, y := d.x(g.from), d.x(g.to), d.y(g.part)+laneHeight/2
		colour := map[string]string{unmoved: "#cc3311", frozen: "#7744cc", reclaimed: "#ee7733", moved: "#333"}[g.class]
		d.printf(`<path d="M%.1f %dH%.1f" stroke="%s"><title>partition %d, %s: %.3f s from %.1f s, member %d to %d</title></path>`,
			x, y, end, colour, g.part, g.class, g.seconds(), g.from.Sub(d.from).Seconds(), g.old.slot, g.new.slot)
		if end-x > 18 {
			d.printf(`<text x="%.1f" y="%d" font-size="8" fill="%s" text-anchor="middle">%.1f</text>`, (x+end)/2, y-2, colour, g.seconds())
		}
	}
}

func (d *picture) event(e *event) {
	x, colour := d.x(e.At), kindColours[e.Kind]
	d.printf(`<path d="M%.1f %dV%d" stroke="%s" stroke-opacity=".7"><title>%s of member %d at %.1f s</title></path>`,
		x, top, d.bottom(), colour, e.Kind, e.Slot, e.At.Sub(d.from).Seconds())
	d.printf(`<text x="%.1f" y="%d" font-size="8" fill="%s" text-anchor="middle">%d</text>`, x, d.bottom()+9, colour, e.Slot)
	if e.Kind == freeze {
		d.printf(`<path d="M%.1f %dH%.1f" stroke="%s" stroke-width="2"/>`, x, d.bottom(), d.x(e.Till), colour)
	}
}

// rate draws the records applied in each second.
func (d *picture) rate(t *trail) {
	bins := make([]int64, int(d.to.Sub(d.from).Seconds())+1)
	var most int64
	for _, c := range t.commits {
		if at := c.at.Sub(d.from).Seconds(); at >= 0 && int(at) < len(bins) {
			bins[int(at)] += c.applied
			most = max(most, bins[int(at)])
		}
	}
	base := d.bottom() + rateHeight + 16
	var path strings.Builder
	for s, n := range bins[:len(bins)-1] {
		fmt.Fprintf(&path, "L%.1f %.1f", d.x(d.from.Add(time.Duration(s)*time.Second+time.Second/2)), float64(base)-float64(rateHeight)*float64(n)/float64(max(most, 1)))
	}
	d.printf(`<path d="M%s" fill="none" stroke="#333"/>`, strings.TrimPrefix(path.String(), "L"))
	d.printf(`<text x="%d" y="%d" text-anchor="end">%d</text><text x="%d" y="%d" text-anchor="end">rec./s</text><text x="%d" y="%d" text-anchor="end">0</text>`,
		left-8, base-rateHeight+8, most, left-8, base-rateHeight+20, left-8, base)
}
