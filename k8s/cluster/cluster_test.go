package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
)

// TestInTurn: a namespace whose Problem changes as fast as Events are made gets every second
// Event, wherever it is in the alphabet, and all others get theirs, too.
func TestInTurn(t *testing.T) {
	problem := func(namespace, message string) model.Problem {
		return model.Problem{Object: model.Ref{Namespace: namespace, Name: "in"}, Message: message}
	}
	for _, evil := range []string{"a-evil", "m-evil", "z-evil"} {
		told, turn, quiet := map[model.Problem]bool{}, "", 0
		for i := range 20 {
			problems := []model.Problem{problem(evil, strings.Repeat("x", i))} // another one each time
			for _, namespace := range strings.Split("b c d e f g h i j", " ") {
				problems = append(problems, problem(namespace, ""))
			}
			slices.SortFunc(problems, func(a, b model.Problem) int { return strings.Compare(a.Object.Namespace, b.Object.Namespace) })
			next := inTurn(untold(told, problems), turn)[0]
			told[next], turn = true, next.Object.Namespace
			if turn != evil {
				quiet++
			}
		}
		if quiet != 9 {
			t.Errorf("%s: %d of 9 others are told after 20 Events", evil, quiet)
		}
	}
}
