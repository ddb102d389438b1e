{{- define "starlingmq.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "starlingmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "starlingmq.labels" -}}
app.kubernetes.io/part-of: starlingmq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "starlingmq.broker" -}}
app.kubernetes.io/name: starlingmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "starlingmq.etcd" -}}
app.kubernetes.io/name: etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The members of the chart's own etcd: a list of host:port. */}}
{{- define "starlingmq.endpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $name := printf "%s-etcd" (include "starlingmq.name" .) -}}
{{- $namespace := .Release.Namespace -}}
{{- range $i := until (int .Values.etcd.replicas) }}{{ if $i }},{{ end }}{{ $name }}-{{ $i }}.{{ $name }}.{{ $namespace }}.svc:2379{{ end -}}
{{- else -}}
{{- if not .Values.etcd.endpoints }}{{ fail "etcd.endpoints: name the members of your etcd, or set etcd.enabled" }}{{ end -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{- /* Where pods may run: labels of the pods and the values. */}}
{{- define "starlingmq.scheduling" -}}
affinity:
  podAntiAffinity:
    {{- if eq .root.Values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector: {matchLabels: {{ .labels | toJson }}}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {{ .labels | toJson }}}
    {{- end }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ .root.Values.zoneSpread }}
  labelSelector: {matchLabels: {{ .labels | toJson }}}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- /* limits.memory of the broker: three quarters of the container's limit, at which the kernel would kill it. Empty: none. */}}
{{- define "starlingmq.memory" -}}
{{- $limit := toString (dig "limits" "memory" "" .Values.resources) -}}
{{- if regexMatch "^[0-9]+(Mi|Gi)$" $limit -}}
{{- $mebibytes := mul (int64 (regexFind "^[0-9]+" $limit)) (ternary 1024 1 (hasSuffix "Gi" $limit)) -}}
{{ div (mul $mebibytes 3) 4 }}MiB
{{- else if $limit -}}
{{ fail "resources.limits.memory: give it in Mi or Gi, so that limits.memory of the broker can be three quarters of it" }}
{{- end -}}
{{- end }}

{{- /* Probes ask at port 8080: without that listener, no pod would ever be ready. */}}
{{- define "starlingmq.checkListeners" -}}
{{- if hasKey .Values.settings "listeners" -}}
{{- $found := false -}}
{{- range .Values.settings.listeners -}}
{{- $url := toString (ternary (get (ternary . dict (kindIs "map" .)) "url") . (kindIs "map" .)) -}}
{{- if regexMatch "^https://.*:8080$" $url }}{{ $found = true }}{{ end -}}
{{- end -}}
{{- if not $found }}{{ fail "settings.listeners: it replaces the chart's listeners, and the probes need one at https://0.0.0.0:8080" }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* The settings file: what the chart sets, and the values of settings over it. */}}
{{- define "starlingmq.settings" -}}
{{- $tls := dict "cert" "/etc/starlingmq/tls/tls.crt" "key" "/etc/starlingmq/tls/tls.key" -}}
{{- $mutual := merge (dict "ca" "/etc/starlingmq/tls/ca.crt") $tls -}}
{{- $listeners := list (dict "url" "mqtts://0.0.0.0:8883" "tls" $tls) (dict "url" "https://0.0.0.0:8080" "tls" $tls) -}}
{{- if .Values.nats.enabled }}{{ $listeners = append $listeners (dict "url" "tls://0.0.0.0:4222" "tls" $tls) }}{{ end -}}
{{- $secrets := "/etc/starlingmq/secrets" -}}
{{- $auth := dict "password" (dict "file" (printf "%s/passwords" $secrets)) "acl" (dict "file" (printf "%s/acl.yaml" $secrets)) "api" (dict "token_file" (printf "%s/api-tokens" $secrets)) -}}
{{- $etcd := dict "endpoints" (splitList "," (include "starlingmq.endpoints" .)) "tls" $mutual -}}
{{- $cluster := dict "enabled" true "listen" "0.0.0.0:7883" "copies" (min 2 (int .Values.replicas)) "secret_file" (printf "%s/cluster-secret" $secrets) "tls" $mutual "etcd" $etcd -}}
{{- include "starlingmq.checkListeners" . -}}
{{- $limits := dict -}}
{{- with include "starlingmq.memory" . }}{{ $limits = dict "memory" . }}{{ end -}}
{{- $own := dict "listeners" $listeners "auth" $auth "node" (dict "data_dir" "/var/lib/starlingmq" "shutdown_timeout" "30s") "cluster" $cluster "limits" $limits -}}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.settings)) -}}
{{- end }}
