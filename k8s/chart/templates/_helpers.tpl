{{/* The name of everything: the release's, if it says what it is. At most 63 characters with any suffix that follows. */}}
{{- define "shield.name" -}}
{{- $part := .Values.nameOverride | default "shield-ingress" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $part .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 35 | trimSuffix "-") $part | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "shield.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "shield-ingress" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "shield.labels" -}}
{{ include "shield.selector" . }}
app.kubernetes.io/part-of: shield
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What shield reads and writes in the namespaces that it watches, but for IngressClasses. */}}
{{- define "shield.rules" -}}
- apiGroups: [networking.k8s.io]
  resources: [ingresses{{ if not .Values.controller.namespaces }}, ingressclasses{{ end }}]
  verbs: [get, list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [services, secrets]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "shield.subjects" -}}
- kind: ServiceAccount
  name: {{ include "shield.account" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "shield.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "shield.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is empty; use the name of an existing one, for serviceAccount.create=false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "shield.image" -}}
{{- with .Values.image -}}
{{- if and .registry (contains "." (splitList "/" .repository | first)) -}}
{{- fail (printf "image.repository is %s; put its registry into image.registry" .repository) -}}
{{- end -}}
{{- with .registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- .repository -}}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "v%s" $.Chart.AppVersion) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* In the node's network only user 0 may listen on a port below 1024. */}}
{{- define "shield.user" -}}
{{- if and .Values.hostNetwork (lt (min .Values.hostPort.http .Values.hostPort.https) 1024) }}0{{ else }}65532{{ end -}}
{{- end -}}

{{- define "shield.seconds" -}}
{{- . | trimSuffix "s" | int -}}
{{- end -}}

{{- define "shield.families" -}}
{{- with .Values.service.ipFamilyPolicy -}}
ipFamilyPolicy: {{ . }}
{{ end -}}
{{- with .Values.service.ipFamilies -}}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- end -}}
