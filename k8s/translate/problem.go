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
	ReasonPolicyInvalid       = "PolicyInvalid"       // an annotation; the last good policy holds
	ReasonParametersInvalid   = "ParametersInvalid"   // of an IngressClass; the last good ones hold
	ReasonNginxIgnored        = "NginxIgnored"        // there are limits of shield's own
	ReasonPathTaken           = "PathTaken"           // the rule is left out
	ReasonDefaultBackendTaken = "DefaultBackendTaken" // the default backend is left out
	ReasonPathInvalid         = "PathInvalid"         // the rule is left out
	ReasonPathLiteral         = "PathLiteral"         // the path looks like a pattern, and is not read as one
	ReasonNoBackend           = "NoBackend"           // a host without paths, and no default backend
	ReasonBackendUnsupported  = "BackendUnsupported"  // not a Service: 503
	ReasonServiceNotFound     = "ServiceNotFound"     // 503
	ReasonPortNotFound        = "PortNotFound"        // 503
	ReasonExternalName        = "ExternalName"        // 503
	ReasonHostTaken           = "HostTaken"           // the certificate is not used for the host
	ReasonSecretNotFound      = "SecretNotFound"      // the default certificate is used
	ReasonSecretInvalid       = "SecretInvalid"       // the default certificate is used
	ReasonCertificateExpired  = "CertificateExpired"  // the default certificate is used
	ReasonCertificateMismatch = "CertificateMismatch" // it is used, but clients will not trust it
)

// maxMessage is about how long a Problem's Message gets by joining several: an
// Event's may have 1,024 bytes.
const maxMessage = 900

// problems are messages in the order in which they were found, each once.
type problems map[problemKey][]string

type problemKey struct {
	object model.Ref
	reason string
}

func (p problems) add(object model.Ref, reason, format string, args ...any) {
	k := problemKey{object, reason}
	if message := fmt.Sprintf(format, args...); !slices.Contains(p[k], message) {
		p[k] = append(p[k], message)
	}
}

func (p problems) sorted() []model.Problem {
	list := make([]model.Problem, 0, len(p))
	for k, messages := range p {
		list = append(list, model.Problem{Object: k.object, Reason: k.reason, Message: joined(messages)})
	}
	slices.SortFunc(list, func(a, b model.Problem) int {
		return cmp.Or(compareRefs(a.Object, b.Object), strings.Compare(a.Reason, b.Reason))
	})
	return list
}

// joined is the first message, and as many more as have room.
func joined(messages []string) string {
	var b strings.Builder
	for i, m := range messages {
		if i > 0 {
			if b.Len()+len(m) > maxMessage {
				fmt.Fprintf(&b, "; and %d more", len(messages)-i)
				break
			}
			b.WriteString("; ")
		}
		b.WriteString(m)
	}
	return b.String()
}

// joinErrors is one line for all errors, or "".
func joinErrors(errs ...error) string {
	err := errors.Join(errs...)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
