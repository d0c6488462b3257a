// What lists the licences of all that is shipped, apart from the product's module.
module github.com/herdshield/shield/.ci/licenses

go 1.26.0

require github.com/google/licensecheck v0.3.1
