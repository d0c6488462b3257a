package redis

// planKeys are the keys of planScript, as KEYS. All have one tag, so that a Cluster keeps
// them on one server.
func planKeys(tag string) []string {
	return []string{tag + ":state", tag + ":members", tag + ":slots", tag + ":log", tag + ":places"}
}
