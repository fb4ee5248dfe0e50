package config

import (
	"reflect"
	"strings"
)

// suggest returns the name that was probably meant, or nothing: one within
// two slips of the pen, or a third of its length for short ones.
func suggest(written string, names []string) string {
	best, distance := "", 3
	written = strings.ToLower(strings.ReplaceAll(written, "-", "_"))
	for _, name := range names {
		d := slips(written, name)
		if d < distance && d <= max(1, len(name)/3) {
			best, distance = name, d
		}
	}
	return best
}

// slips counts the characters to insert, delete, replace or swap with a
// neighbour to turn one word into another.
func slips(a, b string) int {
	const beyond = 99
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return beyond
	}
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := btoi(x[i-1] != y[j-1])
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}

// settingsNamed returns the paths of all settings of that name.
func settingsNamed(name string) []string {
	var paths []string
	walkTypes(reflect.TypeFor[Config](), "", func(path string, f reflect.StructField) {
		if settingName(f) == name {
			paths = append(paths, path)
		}
	})
	return paths
}

// walkTypes visits every setting, groups included, in the order of the file.
func walkTypes(t reflect.Type, path string, visit func(path string, f reflect.StructField)) {
	for f := range t.Fields() {
		inner := join(path, settingName(f))
		visit(inner, f)
		if f.Type.Kind() == reflect.Struct && !isScalar(f.Type) {
			walkTypes(f.Type, inner, visit)
		}
	}
}
