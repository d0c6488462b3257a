package translate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/herdshield/shield/k8s/model"
)

// The reasons of Problems.
const (
	ReasonPolicyInvalid       = "PolicyInvalid"       // an annotation; the last good policy applies
	ReasonParametersInvalid   = "ParametersInvalid"   // of an IngressClass; the last good ones apply
	ReasonNginxIgnored        = "NginxIgnored"        // there are limits of shield's own
	ReasonNginxNotRead        = "NginxNotRead"        // annotations of ingress-nginx
	ReasonNginxGuard          = "NginxGuard"          // one of them guards: 503
	ReasonHostGuard           = "HostGuard"           // one of another Ingress guards the host: 503
	ReasonNginxCanary         = "NginxCanary"         // all rules are left out
	ReasonPathTaken           = "PathTaken"           // the rule is left out
	ReasonDefaultBackendTaken = "DefaultBackendTaken" // the default backend is left out
	ReasonPathInvalid         = "PathInvalid"         // the rule is left out
	ReasonPathLiteral         = "PathLiteral"         // the path looks like a pattern, and is taken literally
	ReasonTooLarge            = "TooLarge"            // the rest of its rules, or of its hosts for TLS, is left out
	ReasonNoBackend           = "NoBackend"           // a host without paths, and no default backend
	ReasonBackendUnsupported  = "BackendUnsupported"  // not a Service: 503
	ReasonServiceNotFound     = "ServiceNotFound"     // 503
	ReasonPortNotFound        = "PortNotFound"        // 503
	ReasonExternalName        = "ExternalName"        // 503
	ReasonHostTaken           = "HostTaken"           // the rule, or the certificate, is left out
	ReasonSecretNotFound      = "SecretNotFound"      // the default certificate is used
	ReasonSecretInvalid       = "SecretInvalid"       // the default certificate is used
	ReasonCertificateExpired  = "CertificateExpired"  // the default certificate is used
	ReasonCertificateMismatch = "CertificateMismatch" // it is used, but clients will not trust it
)

// maxMessage bounds one message, and roughly a Problem's Message, which joins several: an
// Event's may have 1,024 bytes.
const maxMessage = 900

// problems are messages by object and reason.
type problems map[problemKey]*messages

type problemKey struct {
	object model.Ref
	reason string
}

// messages are the first distinct ones of an object and reason, up to maxMessage. The rest
// are only counted, since a large object may give any number.
type messages struct {
	first []string
	bytes int
	more  int
}

func (p problems) add(object model.Ref, reason, format string, args ...any) {
	k := problemKey{object, reason}
	m := p[k]
	if m == nil {
		m = new(messages)
		p[k] = m
	}
	if m.more > 0 {
		m.more++
		return
	}
	message := shorten(fmt.Sprintf(format, args...), maxMessage)
	switch {
	case slices.Contains(m.first, message):
	case m.bytes > 0 && m.bytes+len(message) > maxMessage:
		m.more++
	default:
		m.first = append(m.first, message)
		m.bytes += len(message) + len("; ")
	}
}

func (p problems) sorted() []model.Problem {
	list := make([]model.Problem, 0, len(p))
	for k, m := range p {
		list = append(list, model.Problem{Object: k.object, Reason: k.reason, Message: m.String()})
	}
	slices.SortFunc(list, func(a, b model.Problem) int {
		return cmp.Or(compareRefs(a.Object, b.Object), strings.Compare(a.Reason, b.Reason))
	})
	return list
}

// String returns all messages in one line.
func (m *messages) String() string {
	text := strings.Join(m.first, "; ")
	if m.more > 0 {
		text += fmt.Sprintf("; and %d more", m.more)
	}
	return text
}

// joinErrors returns all errors in one line, or "".
func joinErrors(errs ...error) string {
	err := errors.Join(errs...)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
