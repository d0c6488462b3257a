module github.com/herdshield/shield/clients/go

go 1.22.0
