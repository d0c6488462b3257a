module github.com/herdshield/shield/loadtest/competitors

go 1.26.0

require (
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/herdshield/shield v0.0.0-00010101000000-000000000000
)

require (
	github.com/axiomhq/hyperloglog v0.3.0 // indirect
	github.com/bits-and-blooms/bitset v1.25.0 // indirect
	github.com/dgryski/go-metro v0.0.0-20250106013310-edb8663e5e33 // indirect
	github.com/influxdata/tdigest v0.0.1 // indirect
	github.com/kamstrup/intmap v0.5.2 // indirect
)

replace github.com/herdshield/shield => ../..
