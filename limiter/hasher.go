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

// A Key identifies one client, or anything else that has its own bucket. Keys are 64-bit hashes. Two different
// names share a Key, and so a bucket, with a probability of 2^-64 per pair.
type Key uint64

// MinSecret is the minimum length of a Hasher's secret in bytes, because the key of its hash is that long.
const MinSecret = 16

// A Hasher makes Keys from names. The hash is keyed, so that clients can't choose names that collide. The zero
// Hasher uses a random seed, so its Keys are only valid in this process. Keys made with a secret are the same
// in all processes that have it, and don't reveal the names to others. A Hasher doesn't allocate and is safe
// for concurrent use.
type Hasher struct {
	k0, k1 uint64
	secret bool
}

// NewHasher returns a Hasher with a secret of at least MinSecret bytes. It uses SipHash-2-4 (Aumasson and
// Bernstein, 2012).
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

// KeyOf returns the Key of a name. It is never 0.
func (h Hasher) KeyOf(name string) Key {
	return h.KeyOfBytes(unsafe.Slice(unsafe.StringData(name), len(name))) // it is only read
}

// KeyOfBytes is KeyOf for a name in a byte slice.
func (h Hasher) KeyOfBytes(name []byte) Key {
	if h.secret {
		return max(1, Key(siphash.Hash(h.k0, h.k1, name)))
	}
	return max(1, Key(maphash.Bytes(seed, name)))
}

// KeyOf returns the zero Hasher's Key of a name.
func KeyOf(name string) Key { return Hasher{}.KeyOf(name) }
