package shield

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// savedVersion is that of a saved state: a stream of saved, in gob, in gzip, which adds the checksum. A reader skips fields that
// it does not know, so what is new gets a field of its own, and a new version only if the old fields are not right any more.
const savedVersion = 1

type saved struct {
	Version int // of the first one only, like At and Secret
	At      time.Time
	Secret  []byte // the caller's

	By      limiter.Key // which Guards know the keys: see savedBy
	Zone    string      // whose Keys these are
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
	write := func(part saved) {
		if err == nil {
			err = values.Encode(part)
		}
	}
	write(saved{Version: savedVersion, At: wall, Secret: secret})
	for _, g := range guards {
		for _, z := range g.zones {
			if !known[z.ZoneState] {
				known[z.ZoneState] = true
				z.table.Save(z.instant(now), func(p *limiter.Part) { write(saved{By: g.savedBy(), Zone: z.name, Keys: p}) })
			}
		}
		if !known[g.backend] {
			known[g.backend] = true
			write(saved{By: g.savedBy(), Backend: g.issuer, Clients: g.clients.Save(now)})
		}
	}
	return cmp.Or(err, zip.Close())
}

// savedBy is the same in all Guards with one secret; without, in those of one process.
func (g *Guard) savedBy() limiter.Key { return g.hasher.KeyOf("shield: whose keys are saved") }

// Saved is what Save has written.
type Saved struct {
	At     time.Time
	Secret []byte
	parts  []saved
}

// ReadSaved reads all that Save has written, or returns an error that says what is wrong with it.
func ReadSaved(from io.Reader) (*Saved, error) {
	var data []byte
	zip, err := gzip.NewReader(from)
	if err == nil {
		data, err = io.ReadAll(zip) // nothing is decoded before its checksum is right
	}
	values, parts := gob.NewDecoder(bytes.NewReader(data)), []saved(nil)
	for version := savedVersion; err == nil && version == savedVersion; version = parts[0].Version {
		parts = append(parts, saved{})
		err = values.Decode(&parts[len(parts)-1])
	}
	switch {
	case err != nil && len(parts) < 2, err != nil && err != io.EOF:
		return nil, fmt.Errorf("it is damaged: %w", err)
	case parts[0].Version != savedVersion:
		return nil, fmt.Errorf("its version is %d; this build reads version %d", parts[0].Version, savedVersion)
	}
	return &Saved{parts[0].At, parts[0].Secret, parts}, nil
}

// Load has the zones and the Backend of a Guard that has not decided yet take what was saved of them, once, less what has
// been earned since, by the time of day. If the clock was set back meanwhile, nothing has been earned: no client waits
// for longer than when it was saved.
func (s *Saved) Load(g *Guard, now time.Duration, wall time.Time) error {
	since := min(max(0, wall.Sub(s.At)), math.MaxInt64/4)
	for i, part := range s.parts {
		z := slices.IndexFunc(g.zones, func(z zone) bool { return part.Keys != nil && part.Zone == z.name })
		switch {
		case part.By != NoKey && part.By != g.savedBy():
			return errors.New("it was written under another secret, so its clients can't be recognized")
		case part.Clients != nil && part.Backend == g.issuer:
			g.clients.Resize(g.maxClients)
			g.clients.Load(part.Clients, since, now, g.Rate())
		case z >= 0:
			z, earned := &g.zones[z], since
			if z.Calendar != nil {
				earned = z.Calendar.instant(s.At.Add(since)) - z.Calendar.instant(s.At)
			}
			z.table.Load(part.Keys, earned, z.instant(now))
		default:
			continue
		}
		s.parts[i] = saved{} // another Guard may share it, and be deciding already
	}
	return nil
}
