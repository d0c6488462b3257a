package shield

import (
	"cmp"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// savedVersion is that of a saved state: a stream of gob in gzip, which adds the checksum. First comes a savedHead, then
// saved parts. A reader skips fields that it does not know, so what is new gets a field of its own, and a new version
// only if the old fields are not right any more.
const savedVersion = 1

type savedHead struct {
	Version int
	At      time.Time
	Secret  []byte      // the caller's
	By      limiter.Key // which Guards know its keys: see savedBy
}

type saved struct {
	Zone    string // whose Keys these are
	Keys    *limiter.Part
	Backend string // whose Clients these are
	Clients *pushback.Record
}

// Save writes what is to outlive the process of the zones and Backends of some Guards: what clients have used, and what
// they were promised. Backends are told apart by Retries.Issuer. Keys are hashes, so it is of use only to Guards with
// the same Config.Secret, which all must have; secret is written too. wall is the time of day at now. No lock of a
// decision is held while it writes.
func Save(to io.Writer, now time.Duration, wall time.Time, secret []byte, guards ...*Guard) (err error) {
	zip, _ := gzip.NewWriterLevel(to, gzip.NoCompression) // hashes are not compressible
	values, known := gob.NewEncoder(zip), map[any]bool{}
	write := func(value any) {
		if err == nil {
			err = values.Encode(value)
		}
	}
	head := savedHead{Version: savedVersion, At: wall, Secret: secret}
	if len(guards) > 0 {
		head.By = guards[0].savedBy()
	}
	write(head)
	for _, g := range guards {
		for _, z := range g.zones {
			if !known[z.ZoneState] {
				known[z.ZoneState] = true
				z.table.Save(now, func(p *limiter.Part) { write(saved{Zone: z.name, Keys: p}) })
			}
		}
		if !known[g.backend] {
			known[g.backend] = true
			write(saved{Backend: g.issuer, Clients: g.clients.Save(now)})
		}
	}
	return cmp.Or(err, zip.Close())
}

// savedBy is the same in all Guards with one secret; without, in those of one process.
func (g *Guard) savedBy() limiter.Key { return g.hasher.KeyOf("shield: whose keys are saved") }

// Saved is what Save has written.
type Saved struct {
	savedHead
	parts []saved
}

// ReadSaved reads all that Save has written, or returns an error that says what is wrong with it.
func ReadSaved(from io.Reader) (*Saved, error) {
	is := new(Saved)
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("it is damaged at its beginning: %w", err)
	}
	values := gob.NewDecoder(zip)
	err = values.Decode(&is.savedHead)
	for err == nil && is.Version == savedVersion {
		is.parts = append(is.parts, saved{})
		err = values.Decode(&is.parts[len(is.parts)-1])
	}
	if err == nil || err == io.EOF { // the checksum is at the end
		_, err = io.Copy(io.Discard, zip)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is damaged after %d parts: %w", len(is.parts), err)
	case is.Version != savedVersion:
		return nil, fmt.Errorf("its version is %d; want %d", is.Version, savedVersion)
	}
	return is, nil
}

// Load has the zones and the Backend of a Guard that has not decided yet take what was saved of them, once, less what has
// been earned since, by the time of day. If the clock was set back meanwhile, nothing has been earned: no client waits
// for longer than when it was saved.
func (s *Saved) Load(g *Guard, now time.Duration, wall time.Time) error {
	if s.By != g.savedBy() && s.By != NoKey {
		return errors.New("it was written under another secret, so that no client is known by it")
	}
	since := min(max(0, wall.Sub(s.At)), math.MaxInt64/4)
	for i, part := range s.parts {
		for _, z := range g.zones {
			if part.Keys != nil && part.Zone == z.name {
				z.table.Load(part.Keys, since, now)
				s.parts[i] = saved{} // another Guard may share the zone, and be deciding already
			}
		}
		if part.Clients != nil && part.Backend == g.issuer {
			g.clients.Resize(g.maxClients)
			g.clients.Load(part.Clients, since, now, g.Rate())
			s.parts[i] = saved{}
		}
	}
	return nil
}
