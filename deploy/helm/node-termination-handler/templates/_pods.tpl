{{/*
The tolerations of the Deployment's pods: those of the values and ours. A pod on a node that does not answer leaves after
30 s and not after 300 s, which Kubernetes adds: until then there is no second replica.
*/}}
{{- define "node-termination-handler.tolerations" -}}
{{- $ours := list -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $ours = append $ours (dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) -}}
{{- end -}}
{{- include "node-termination-handler.withOwnTaints" (dict "of" . "given" (default list .Values.tolerations) "ours" $ours) -}}
{{- end -}}

{{/*
Tolerations, and ours beside them: dict "of" . "given" list "ours" list. To these belong the handler's own taints, which with
taintEffect NoExecute would evict its pod in the middle of the drain. They are tolerated for the effect NoExecute alone, so
that no pod is scheduled onto a node that is drained.
*/}}
{{- define "node-termination-handler.withOwnTaints" -}}
{{- $all := .given -}}
{{- $ours := .ours -}}
{{- $keys := list -}}
{{- range $all -}}
{{- if or (not .effect) (eq .effect "NoExecute") }}{{ $keys = append $keys (default "" .key) }}{{ end -}}
{{- end -}}
{{- $effect := default "" .of.Values.taintEffect -}}
{{- range .of.Values.extraEnv }}{{ if and (eq .name "TAINT_EFFECT") .value }}{{ $effect = .value }}{{ end }}{{ end -}}
{{- $taints := include "node-termination-handler.isOn" (dict "values" .of.Values "option" "taintNode" "env" "TAINT_NODE" "default" "false") -}}
{{- if and $taints (eq (lower $effect) "noexecute") -}}
{{- range list "spot-itn" "scheduled-maintenance" "asg-lifecycle-termination" "rebalance-recommendation" "capacity-reservation-interruption" "capacity-block-expiration" "instance-impaired" -}}
{{- $ours = append $ours (dict "key" (printf "aws-node-termination-handler/%s" .) "operator" "Exists" "effect" "NoExecute") -}}
{{- end -}}
{{- end -}}
{{- range $ours -}}
{{- /* A toleration without a key is for all taints. */ -}}
{{- if not (or (has .key $keys) (has "" $keys)) }}{{ $all = append $all . }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/*
The ports of the URLs in the values that egress to AWS and the API server does not have: a list as YAML. The proxy in
a variable may be HOST:PORT alone: net/http then reads http://HOST:PORT. A SOCKS proxy has the port 1080 by default.
*/}}
{{- define "node-termination-handler.otherPorts" -}}
{{- $urls := list -}}
{{- range list "webhookURL" "webhookProxy" "awsEndpoint" }}{{ $urls = append $urls (default "" (get $.Values .)) }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- $value := default "" .value | toString -}}
{{- if regexMatch "^(?i:https?_proxy|all_proxy)$" .name -}}
{{- if and $value (not (contains "://" $value)) }}{{ $value = trim $value | printf "http://%s" }}{{ end -}}
{{- $urls = append $urls $value -}}
{{- else if regexMatch "^(AWS_ENDPOINT_URL(_[A-Z0-9_]+)?|WEBHOOK_(URL|PROXY))$" .name -}}
{{- $urls = append $urls $value -}}
{{- end -}}
{{- end -}}
{{- $ports := list -}}
{{- $defaults := dict "https" "443" "socks5" "1080" "socks5h" "1080" -}}
{{- range $urls -}}
{{- $form := "^ *([A-Za-z0-9]+)://(?:[^/@]*@)?(?:[^/:@?#$]+|\\[[^]]*\\])(?::([0-9]+))?(?:[/?#].*)? *$" -}}
{{- if regexMatch $form . -}}
{{- $port := regexReplaceAll $form . "${2}" -}}
{{- if not $port }}{{ $port = get $defaults (regexReplaceAll $form . "${1}" | lower) | default "80" }}{{ end -}}
{{- if not (has $port (list "443" "6443")) }}{{ $ports = append $ports (int $port) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- uniq $ports | toYaml -}}
{{- end -}}

{{/* The resources of the container. A request of the chart's defaults is no higher than a limit of the user's. */}}
{{- define "node-termination-handler.resources" -}}
{{- $resources := deepCopy (default dict .Values.resources) -}}
{{- $limits := default dict $resources.limits -}}
{{- $requests := default dict $resources.requests -}}
{{- if and $limits.cpu $requests.cpu -}}
{{- if lt (include "node-termination-handler.millicores" $limits.cpu | float64) (include "node-termination-handler.millicores" $requests.cpu | float64) }}{{ $_ := set $requests "cpu" $limits.cpu }}{{ end -}}
{{- end -}}
{{- if and $limits.memory $requests.memory -}}
{{- if lt (include "node-termination-handler.mebibytes" $limits.memory | float64) (include "node-termination-handler.mebibytes" $requests.memory | float64) }}{{ $_ := set $requests "memory" $limits.memory }}{{ end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* A quantity of CPU in thousandths of a core. */}}
{{- define "node-termination-handler.millicores" -}}
{{- $text := include "node-termination-handler.text" . -}}
{{- if hasSuffix "m" $text }}{{ trimSuffix "m" $text | float64 }}{{ else }}{{ mulf (float64 $text) 1000 }}{{ end -}}
{{- end -}}

{{/* A quantity of memory in MiB. */}}
{{- define "node-termination-handler.mebibytes" -}}
{{- $text := include "node-termination-handler.text" . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $bytes := dict "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- divf (mulf (trimSuffix $unit $text | float64) (get $bytes $unit | default 1e12)) 1048576.0 -}}
{{- end -}}

{{/*
How the values ask for nodes of spot instances: a list of texts as YAML. A DaemonSet that warns of spot interruptions
belongs there; a controller does not, because both replicas may go away with the nodes that they should drain.
*/}}
{{- define "node-termination-handler.spotNodes" -}}
{{- $keys := list "karpenter.sh/capacity-type" "eks.amazonaws.com/capacityType" "node.kubernetes.io/lifecycle" "lifecycle" -}}
{{- $found := list -}}
{{- range $key, $value := default dict .Values.nodeSelector -}}
{{- if and (has $key $keys) (regexMatch "(?i)spot" (toString $value)) -}}
{{- $found = append $found (printf "nodeSelector %s: %s" $key $value) -}}
{{- end -}}
{{- end -}}
{{- $affinity := default dict (default dict .Values.affinity).nodeAffinity -}}
{{- $terms := default list (default dict $affinity.requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms -}}
{{- range $affinity.preferredDuringSchedulingIgnoredDuringExecution }}{{ $terms = append $terms (default dict .preference) }}{{ end -}}
{{- range $terms -}}
{{- range .matchExpressions -}}
{{- if and (has .key $keys) (eq .operator "In") (regexMatch "(?i)^[^,]*spot[^,]*(,[^,]*spot[^,]*)*$" (join "," .values)) -}}
{{- $found = append $found (printf "affinity %s: %s" .key (join ", " .values)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The one container of the pods, as an entry of a list. */}}
{{- define "node-termination-handler.container" -}}
{{- $probes := include "node-termination-handler.hasProbes" . -}}
{{- $metrics := include "node-termination-handler.hasMetrics" . -}}
{{- $httpGet := include "node-termination-handler.httpGet" . | fromYaml -}}
{{- $image := include "node-termination-handler.group" (dict "of" . "name" "image") | fromYaml -}}
- name: {{ include "node-termination-handler.name" . }}
  {{- $tag := default .Chart.AppVersion (include "node-termination-handler.text" $image.tag) }}
  image: {{ $image.repository }}{{ hasPrefix "sha256:" $tag | ternary "@" ":" }}{{ $tag }}
  {{- with $image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- /* Why it ended is then in the pod's status, where doctor and kubectl describe find it. */}}
  terminationMessagePolicy: FallbackToLogsOnError
  env:
    {{- include "node-termination-handler.env" . | nindent 4 }}
  {{- if or $probes $metrics }}
  ports:
    {{- if $probes }}
    - {name: liveness-probe, containerPort: {{ $httpGet.port }}}
    {{- end }}
    {{- if $metrics }}
    - {name: http-metrics, containerPort: {{ include "node-termination-handler.metricsPort" . }}}
    {{- end }}
  {{- end }}
  {{- if $probes }}
  livenessProbe:
    {{- $probe := dict "httpGet" (dict "path" $httpGet.path "port" "liveness-probe") }}
    {{- range $key, $value := omit (include "node-termination-handler.group" (dict "of" . "name" "probes") | fromYaml) "httpGet" }}
    {{- $text := include "node-termination-handler.text" $value }}
    {{- if and (kindIs "string" $value) (regexMatch "^[0-9]+$" $text) }}{{ $value = int $text }}{{ end }}
    {{- if $text }}{{ $_ := set $probe $key $value }}{{ end }}
    {{- end }}
    {{- toYaml $probe | nindent 4 }}
  readinessProbe:
    httpGet: {path: /readyz, port: liveness-probe}
    periodSeconds: 5
  {{- end }}
  {{- with include "node-termination-handler.resources" . | fromYaml }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- /* Its fields are those of Linux. */}}
  {{- with eq (default "linux" .targetOs) "linux" | ternary .Values.securityContext dict }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or .Values.webhookTemplateConfigMapName .Values.policy .Values.extraVolumeMounts }}
  volumeMounts:
    {{- if .Values.webhookTemplateConfigMapName }}
    - {name: webhook-template, mountPath: /config, readOnly: true}
    {{- end }}
    {{- if .Values.policy }}
    {{- /* A folder: the kubelet does not update a file that is mounted by its subPath. */}}
    - {name: policy, mountPath: /policy, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The volumes of the pods. */}}
{{- define "node-termination-handler.volumes" -}}
{{- if or .Values.webhookTemplateConfigMapName .Values.policy .Values.extraVolumes -}}
volumes:
  {{- with .Values.webhookTemplateConfigMapName }}
  - name: webhook-template
    configMap: {name: {{ . }}}
  {{- end }}
  {{- if .Values.policy }}
  - name: policy
    configMap: {name: {{ include "node-termination-handler.policyName" . }}}
  {{- end }}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}
