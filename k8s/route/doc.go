// Package route finds who gets a request: the Target of the one rule that takes its
// host and path.
//
// # Hosts
//
// A host that is named by rules is theirs alone; then come the rules for a wildcard,
// which stands for exactly one label, and then those without a host. The first of
// these levels that has a rule for the host is the only one that is looked at. Hosts
// are compared in lower case, without port and without the dot that may end them.
//
// # Paths
//
// Exact rules want every byte of the path; the others are prefixes by elements: /a and
// /a/ take /a, /a/ and /a/b, but not /ab. The longest path has precedence, then the
// exact one, then the one that stands first in the list. What no rule of the host
// takes goes to its fallbacks, and then to the catch-all. These are the rules of the
// Kubernetes documentation ("Ingress", path types and hostname wildcards), and tests
// hold the package to every row of its tables.
//
// # One reading
//
// The path that is matched is the decoded one, decoded once, and the path that is
// forwarded decodes to it. Proxies and backends that disagree on what a path means
// let requests past rules (Orange Tsai, "Breaking Parser Logic", 2018), so
// [Table.Resolve] refuses what no client means and some server may read differently:
//
//   - elements that are "." or "..", written in any way: encoded, several times, in
//     overlong UTF-8, next to backslashes or encoded slashes, or with a parameter,
//     as "..;";
//   - control characters, and targets that are not paths;
//   - encoded slashes, backslashes, doubled slashes and what is encoded twice, but only
//     where reading them the other way would lead to another Target. So
//     /projects/group%2Fname is fine under one rule for /projects.
//
// It makes no statement on parameters (/a;b is not /a), nor on upper and lower case:
// paths are case-sensitive, whatever a backend thinks.
//
// Paths of rules are decoded already. Whoever makes rules has to see to it that two of
// them for the same decoded path do not look different: which of them has precedence
// is decided before.
//
// A Table costs one map look-up per element of a path that rules branch at, however
// many rules there are and however long the path is, and memory for two nodes per rule
// at most, however deep its path is.
package route
