// h2spec at a fixed version, with fixed sums.
module github.com/herdshield/shield/.ci/h2spec

go 1.26.0

tool github.com/summerwind/h2spec/cmd/h2spec

require (
	github.com/summerwind/h2spec v1.5.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
