package limiter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"unsafe"

	"github.com/dchest/siphash"
)

// A Key identifies one client, or anything else that has its own bucket. Keys are
// 64-bit hashes: two different names share a Key, and so a bucket, with a
// probability of 2^-64 per pair.
type Key uint64

// MinSecret is how long a Hasher's secret is at least, in bytes: as long as the key of
// its hash.
const MinSecret = 16

// A Hasher makes Keys of names, so that no client can choose names that collide. The
// zero Hasher has a seed of its own in each process: its Keys must not leave the process.
// Keys from a secret are the same in all processes that have it, and do not tell the names
// to any other. It makes no allocations, and is safe for concurrent use.
type Hasher struct {
	k0, k1 uint64
	secret bool
}

// NewHasher returns a Hasher with a secret of at least MinSecret bytes. Its keyed hash is
// SipHash-2-4 (Aumasson and Bernstein, 2012).
func NewHasher(secret []byte) (Hasher, error) {
	if len(secret) < MinSecret {
		return Hasher{}, fmt.Errorf("secret has %d bytes; use at least %d", len(secret), MinSecret)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("shield: keys of clients")) // not what else is made of the secret
	sum := mac.Sum(nil)
	return Hasher{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:]), true}, nil
}

// seed makes the keys of a zero Hasher unpredictable.
var seed = maphash.MakeSeed()

// KeyOf returns the Key for a name. It is never 0.
func (h Hasher) KeyOf(name string) Key {
	return h.KeyOfBytes(unsafe.Slice(unsafe.StringData(name), len(name))) // it is only read
}

// KeyOfBytes returns the Key for a name that is held as bytes.
func (h Hasher) KeyOfBytes(name []byte) Key {
	if h.secret {
		return max(1, Key(siphash.Hash(h.k0, h.k1, name)))
	}
	return max(1, Key(maphash.Bytes(seed, name)))
}

// KeyOf returns the zero Hasher's Key for a name.
func KeyOf(name string) Key { return Hasher{}.KeyOf(name) }
