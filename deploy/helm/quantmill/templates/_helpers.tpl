{{- define "quantmill.name" -}}
{{- if contains "quantmill" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-quantmill" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "quantmill.selector" -}}
app.kubernetes.io/name: quantmill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "quantmill.labels" -}}
{{ include "quantmill.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "quantmill.image" -}}
{{- $image := index .root.Values.image .which -}}
{{- $name := printf "%s/%s" .root.Values.image.registry $image.repository -}}
{{- if $image.digest }}{{ $name }}@{{ $image.digest }}{{ else }}{{ $name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "quantmill.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "quantmill.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "quantmill.secret" -}}
{{ .Values.secrets.existing | default (include "quantmill.name" .) }}
{{- end }}

{{- define "quantmill.apiSecret" -}}
{{ .Values.secrets.existingApi | default (printf "%s-api" (include "quantmill.name" .)) }}
{{- end }}

{{/* Every variable that is no secret. The migration, which runs before there is a ConfigMap, has them in its own manifest. */}}
{{- define "quantmill.settings" -}}
{{- $ours := dict
  "QUANTMILL_DATABASE_URL" .Values.database.url
  "QUANTMILL_DATA_DIR" "/data" -}}
{{- if .Values.broker.url }}{{ $_ := set $ours "QUANTMILL_BROKER_URL" .Values.broker.url }}{{ end -}}
{{- if .Values.storage.url -}}
{{- $_ := set $ours "QUANTMILL_STORAGE_URL" .Values.storage.url -}}
{{- $_ := set $ours "QUANTMILL_STORAGE_CACHE_BYTES" (.Values.storage.cacheBytes | int64 | toString) -}}
{{- else -}}
{{- $_ := set $ours "QUANTMILL_STORAGE_DIR" "/store/files" -}}
{{- $_ := set $ours "QUANTMILL_CHECKPOINT_DIR" "/checkpoints" -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $ours "QUANTMILL_METRICS_HOST" "0.0.0.0" -}}
{{- $_ := set $ours "QUANTMILL_METRICS_PORT" (.Values.metrics.port | int64 | toString) -}}
{{- end -}}
{{- toYaml (merge dict .Values.settings $ours) -}}
{{- end }}

{{- define "quantmill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "quantmill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What a Deployment's pods have in common: root, component, own values, and for the container resources and api: with keys and pepper. */}}
{{- define "quantmill.podMetadata" -}}
labels:
  {{- include "quantmill.labels" . | nindent 2 }}
annotations:
  # New settings and secrets start new pods.
  checksum/settings: {{ printf "%s%s%s" (include "quantmill.settings" .root) (toJson .root.Values.secrets.values) (toJson .root.Values.secrets.apiValues) | sha256sum }}
{{- end }}

{{- define "quantmill.pod" -}}
serviceAccountName: {{ include "quantmill.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "quantmill.podSecurity" . | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ .own.terminationGracePeriodSeconds }}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "quantmill.selector" . | nindent 8 }}
volumes:
  - name: data
    emptyDir: {sizeLimit: {{ .own.disk }}}
  - name: tmp
    emptyDir: {sizeLimit: 2Gi}
  {{- if not .root.Values.storage.url }}
  - name: store
    persistentVolumeClaim: {claimName: {{ .root.Values.storage.volume.existingClaim | default (printf "%s-store" (include "quantmill.name" .root)) }}}
  {{- end }}
{{- end }}

{{- define "quantmill.container" -}}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "quantmill.containerSecurity" . | nindent 2 }}
envFrom:
  - configMapRef: {name: {{ include "quantmill.name" .root }}}
  - secretRef: {name: {{ include "quantmill.secret" .root }}}
  {{- if .api }}
  - secretRef: {name: {{ include "quantmill.apiSecret" .root }}}
  {{- end }}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
  {{- if not .root.Values.storage.url }}
  - {name: store, mountPath: /store, subPath: store}
  - {name: store, mountPath: /checkpoints, subPath: checkpoints}
  {{- end }}
resources:
  {{- toYaml .resources | nindent 2 }}
{{- end }}

{{- define "quantmill.metricsPort" -}}
{{- if .Values.metrics.enabled }}- {name: metrics, containerPort: {{ .Values.metrics.port }}}{{ end }}
{{- end }}

{{/* No liveness by this: a database that is away is no reason to end a job that goes on without it. */}}
{{- define "quantmill.doctorProbes" -}}
startupProbe:
  exec: {command: [quantmill, doctor, --no-engine]}
  periodSeconds: 15
  timeoutSeconds: 20
  failureThreshold: 40
readinessProbe:
  exec: {command: [quantmill, doctor, --no-engine]}
  periodSeconds: 60
  timeoutSeconds: 20
{{- end }}

{{/* A worker's entry over workerDefaults. */}}
{{- define "quantmill.worker" -}}
{{- toYaml (mergeOverwrite (deepCopy .root.Values.workerDefaults) .entry) -}}
{{- end }}
