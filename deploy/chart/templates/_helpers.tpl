{{/* By what the Deployment finds its pods. */}}
{{- define "gpuloom.selector" -}}
app.kubernetes.io/name: gpuloom
app.kubernetes.io/component: scheduler
{{- end }}

{{/* What all objects bear. */}}
{{- define "gpuloom.labels" -}}
{{ include "gpuloom.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What is of the whole cluster has the namespace in its name: there may be a release in several. */}}
{{- define "gpuloom.clusterName" -}}
{{ .Values.serviceAccount.name }}-{{ .Release.Namespace }}
{{- end }}
