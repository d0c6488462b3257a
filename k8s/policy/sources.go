package policy

import "net/netip"

// nginxAliases are older names of ingress-nginx's annotations, which count if the new one is
// empty or not set.
var nginxAliases = map[string]string{"allowlist-source-range": "whitelist-source-range"}

// sourcesOf makes a row for addresses of clients. A guard must not open by a mistake: a value
// that is wrong admits no client.
func sourcesOf(a Annotation, set func(f *Filters, list []netip.Prefix)) filterRow {
	return filterRow{rowApart[Filters](a, prefixForm).Annotation, a.Name, func(r *reader, name, text string, f *Filters) {
		list, ok := parse(r, name, prefixForm, text)
		if !ok {
			list = []netip.Prefix{}
		}
		set(f, list)
	}}
}

// Admits reports whether a client with this address is served. It does not allocate.
func (f *Filters) Admits(client netip.Addr) bool {
	return !f.wrongSources() && client.IsValid() && (f.AllowFrom == nil || within(f.AllowFrom, client)) && !within(f.DenyFrom, client)
}

// Asks reports whether Admits depends on the client.
func (f *Filters) Asks() bool { return f != nil && (f.AllowFrom != nil || f.DenyFrom != nil) }

// AdmitsNone reports whether all requests are rejected, because a guard is wrong.
func (f *Filters) AdmitsNone() bool {
	return f != nil && (f.wrongSources() || f.Auth != nil && f.Auth.URL == "")
}

// wrongSources reports whether one of the lists of addresses is wrong.
func (f *Filters) wrongSources() bool {
	return f.AllowFrom != nil && len(f.AllowFrom) == 0 || f.DenyFrom != nil && len(f.DenyFrom) == 0
}

// Guards returns the filters that keep requests out, alone.
func (f *Filters) Guards() Filters {
	if f == nil {
		return Filters{}
	}
	return Filters{AllowFrom: f.AllowFrom, DenyFrom: f.DenyFrom, Auth: f.Auth}
}
