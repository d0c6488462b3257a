package share

// A Constant is a number that a store has in common with its replicas.
type Constant struct {
	Name  string // by which scripts know it
	Value int64  // times are in milliseconds
}

// Constants are those of the Model.
func Constants() []Constant {
	return []Constant{
		{"sweepTime", sweepTime}, {"rosterTime", RosterTime.Milliseconds()}, {"idleLease", IdleLease.Milliseconds()},
		{"keptNews", keptNews}, {"maxNews", maxNews},
		{"shortestWait", shortestWait}, {"keptSlots", keptSlots}, {"mostWant", mostWant},
	}
}
