package terminal

// Nearest returns the name with the smallest edit distance to s.
func Nearest(s string, names []string) string {
	best, least := "", len(s)+1<<10
	for _, name := range names {
		if d := distance(s[:min(len(s), 100)], name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
