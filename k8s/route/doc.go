// Package route finds the Target of a request: that of the one rule that matches its host and path.
//
// # Hosts
//
// Rules that name a host come first, then rules for a wildcard, which matches exactly one label, then
// rules without a host. Only the first of these levels with a rule for the host is searched. Hosts are
// compared in lower case, without port and without a trailing dot.
//
// # Paths
//
// Exact rules match the whole path, byte by byte; the others are prefixes by elements: /a and /a/ match /a, /a/
// and /a/b, but not /ab. The longest path has precedence, then the exact one, then the first one in the list.
// If no rule of the host matches, its fallbacks do, then the catch-all. Patterns are regular expressions,
// anchored at the beginning; among prefixes, the length of their text is their precedence, and so it is of
// prefixes in any case, which go by bytes, as locations "~*" of nginx do. The others are the rules of the
// Kubernetes documentation ("Ingress", path types and hostname wildcards). Tests cover every row of its tables.
//
// # One reading
//
// Paths are matched decoded once, and forwarded in a form that decodes to the same. Where a proxy and a
// backend read a path differently, requests bypass rules (Orange Tsai, "Breaking Parser Logic", 2018).
// So [Table.Resolve] rejects paths that no client means and that a server may read differently:
//
//   - elements that are "." or "..", written in any way: encoded, several times, in
//     overlong UTF-8, next to backslashes or encoded slashes, or with a parameter,
//     as "..;";
//   - control characters, and targets that are not paths;
//   - encoded slashes, backslashes, doubled slashes and double encoding, but only where
//     the other reading would lead to another Target. So /projects/group%2Fname is fine
//     under one rule for /projects.
//
// It does not interpret parameters (/a;b is not /a). Other paths are case-sensitive, even if a
// backend's are not.
//
// Paths of rules are decoded already. The caller must decide on the precedence of two
// rules with the same decoded path, and write them alike.
//
// A look-up costs one map access for each element at which rules branch, whatever the number of rules
// and the length of the path. A Table has at most two nodes for each rule, however deep its path is.
package route
