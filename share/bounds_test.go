package share

import (
	"encoding/json"
	"fmt"
)

// mustBeBounded panics if what an honest store has answered is out of bounds.
func mustBeBounded(answer, ask any) {
	before, _ := json.Marshal(answer)
	switch a := answer.(type) {
	case *Answer:
		a.Bound(ask.(*Ask))
	case *LeaseAnswer:
		a.Bound(ask.(*LeaseAsk))
	}
	if after, _ := json.Marshal(answer); string(after) != string(before) {
		panic(fmt.Sprintf("an honest store answers %s, which is bounded to %s", before, after))
	}
}
