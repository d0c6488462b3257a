package policy

import "strings"

// nearest returns the word with the smallest edit distance from name, the first of several,
// and whether it was probably meant: with at most two edits, or a third of its letters.
func nearest(name string, words []string) (word string, isNear bool) {
	name = strings.ToLower(name)
	if len(name) > maxClip {
		name = name[:maxClip] // bounds the cost
	}
	least := 0
	for i, w := range words {
		if d := distance(name, w); i == 0 || d < least {
			word, least = w, d
		}
	}
	return word, least <= max(2, len(word)/3)
}

// distance returns the edit distance of a and b: insertions, deletions, substitutions, and
// transpositions of neighbours (optimal string alignment: Damerau, 1964).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			same := last[j-1]
			if a[i-1] != b[j-1] {
				same++
			}
			row[j] = min(same, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
