{{/* The value of an option as text; empty if it is not set. Numbers in values are float64, which Go may print as 1e+06. */}}
{{- define "node-termination-handler.text" -}}
{{- if not (kindIs "invalid" .) -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
A group of values: dict "of" . "name" "image". With helm upgrade --reuse-values the values are those of the chart
before, which may be another one or an older one, without the group. It then has its defaults.
*/}}
{{- define "node-termination-handler.group" -}}
{{- $defaults := get (.of.Files.Get "files/groups.yaml" | fromYaml) .name -}}
{{- default $defaults (get .of.Values .name) | toYaml -}}
{{- end -}}

{{/*
The mode: queue or IMDS. As in NTH's chart IMDS is the default; where there is a queue, it is meant.
*/}}
{{- define "node-termination-handler.mode" -}}
{{- $text := include "node-termination-handler.text" .Values.enableSqsTerminationDraining | lower -}}
{{- $queue := include "node-termination-handler.text" .Values.queueURL -}}
{{- range .Values.extraEnv -}}
{{- if and (eq .name "ENABLE_SQS_TERMINATION_DRAINING") .value }}{{ $text = toString .value | lower }}{{ end -}}
{{- if eq .name "QUEUE_URL" }}{{ $queue = "given" }}{{ end -}}
{{- end -}}
{{- if has $text (list "false" "f" "0") -}}
IMDS
{{- else if or $text $queue -}}
queue
{{- else -}}
IMDS
{{- end -}}
{{- end -}}

{{/* Not empty if the queue alone makes it queue mode. */}}
{{- define "node-termination-handler.queueAlone" -}}
{{- $text := include "node-termination-handler.text" .Values.enableSqsTerminationDraining -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "ENABLE_SQS_TERMINATION_DRAINING" }}{{ $text = "given" }}{{ end -}}
{{- end -}}
{{- if and (eq (include "node-termination-handler.mode" .) "queue") (not $text) }}true{{ end -}}
{{- end -}}

{{/* Not empty if the Deployment has no queue, but its notices from the pods of the IMDS mode. */}}
{{- define "node-termination-handler.noQueue" -}}
{{- $queue := include "node-termination-handler.text" .Values.queueURL | trim -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "QUEUE_URL" }}{{ $queue = default "" .value | trim }}{{ end -}}
{{- end -}}
{{- if and (eq $queue "none") (eq (include "node-termination-handler.mode" .) "queue") }}true{{ end -}}
{{- end -}}

{{/* Not empty if the values ask for sweeps of lifecycle hooks. */}}
{{- define "node-termination-handler.sweeps" -}}
{{- $interval := include "node-termination-handler.text" .Values.sweepInterval -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "SWEEP_INTERVAL" }}{{ $interval = ternary "0" (default "" .value | toString | trim) (hasKey . "valueFrom") }}{{ end -}}
{{- end -}}
{{- if regexMatch "^[0-9]" $interval }}true{{ end -}}
{{- end -}}

{{/* Not empty if options of a mode do not count for the pods: dict "mode" "queue" "of" . */}}
{{- define "node-termination-handler.isIdle" -}}
{{- $noQueue := include "node-termination-handler.noQueue" .of -}}
{{- if eq (include "node-termination-handler.mode" .of) "IMDS" -}}
{{- if has .mode (list "queue" "leader" "hooks") }}true{{ end -}}
{{- else if eq (ternary "queue" "IMDS" (not (not $noQueue))) (default "" .mode) -}}
true
{{- else if and $noQueue (eq (default "" .mode) "hooks") -}}
{{- if not (include "node-termination-handler.sweeps" .of) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* Not empty if the DaemonSet of the IMDS mode is made beside the Deployment. */}}
{{- define "node-termination-handler.both" -}}
{{- $group := include "node-termination-handler.group" (dict "of" . "name" "daemonset") | fromYaml -}}
{{- $wanted := or $group.create (include "node-termination-handler.noQueue" .) -}}
{{- if and $wanted (eq (include "node-termination-handler.mode" .) "queue") }}true{{ end -}}
{{- end -}}

{{/* The name of the Secret that the user made for an option, if any. */}}
{{- define "node-termination-handler.userSecret" -}}
{{- get .values (printf "%sSecretName" .option) | default "" -}}
{{- end -}}

{{/* The data of the Secret of this release: a map of keys to texts. */}}
{{- define "node-termination-handler.secrets" -}}
{{- $secrets := dict -}}
{{- range .Files.Get "files/options.yaml" | fromYamlArray -}}
{{- $text := include "node-termination-handler.text" (get $.Values .value) -}}
{{- if and .secret $text (not (include "node-termination-handler.userSecret" (dict "values" $.Values "option" .value))) -}}
{{- $_ := set $secrets (lower .value) $text -}}
{{- end -}}
{{- end -}}
{{- toYaml $secrets -}}
{{- end -}}

{{/* The container's environment. An entry of extraEnv replaces ours: the API server refuses two entries of one name. */}}
{{- define "node-termination-handler.env" -}}
{{- $httpGet := include "node-termination-handler.httpGet" . | fromYaml -}}
{{- $env := list
      (dict "name" "NODE_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "spec.nodeName")))
      (dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name")))
      (dict "name" "NAMESPACE" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace"))) -}}
{{- $mode := include "node-termination-handler.mode" . -}}
{{- $decided := list -}}
{{- $env = append $env (dict "name" "LEADER_ELECT_RESOURCE_NAME" "value" (default (include "node-termination-handler.fullname" .) .leaseName)) -}}
{{- if eq $mode "IMDS" -}}
{{- $decided = list "ENABLE_SQS_TERMINATION_DRAINING" "ENABLE_PROMETHEUS_SERVER" -}}
{{- $env = concat $env (list
      (dict "name" "ENABLE_SQS_TERMINATION_DRAINING" "value" "false")
      (dict "name" "ENABLE_PROBES_SERVER" "value" (include "node-termination-handler.hasProbes" . | default "false"))
      (dict "name" "ENABLE_PROMETHEUS_SERVER" "value" (include "node-termination-handler.hasMetrics" . | default "false"))) -}}
{{- end -}}
{{- $env = concat $env (list
      (dict "name" "PROBES_SERVER_PORT" "value" (include "node-termination-handler.text" $httpGet.port))
      (dict "name" "PROBES_SERVER_ENDPOINT" "value" $httpGet.path)) -}}
{{- range .Files.Get "files/options.yaml" | fromYamlArray -}}
{{- $text := include "node-termination-handler.text" (get $.Values .value) -}}
{{- $userSecret := "" -}}
{{- if .secret }}{{ $userSecret = include "node-termination-handler.userSecret" (dict "values" $.Values "option" .value) }}{{ end -}}
{{- if or .noEffect (include "node-termination-handler.isIdle" (dict "mode" .mode "of" $)) (has .env $decided) -}}
{{- else if or $userSecret (and .secret $text) -}}
{{- $name := default (include "node-termination-handler.fullname" $) $userSecret -}}
{{- $env = append $env (dict "name" .env "valueFrom" (dict "secretKeyRef" (dict "name" $name "key" (lower .value)))) -}}
{{- else if $text -}}
{{- $env = append $env (dict "name" .env "value" $text) -}}
{{- end -}}
{{- end -}}
{{- if .Values.webhookTemplateConfigMapName -}}
{{- $env = append $env (dict "name" "WEBHOOK_TEMPLATE_FILE" "value" (printf "/config/%s" .Values.webhookTemplateConfigMapKey)) -}}
{{- end -}}
{{- if .Values.policy -}}
{{- $env = append $env (dict "name" "POLICY_FILE" "value" "/policy/policy.yaml") -}}
{{- end -}}
{{- if and .Values.awsAccessKeyID (eq $mode "queue") -}}
{{- $env = concat $env (list
      (dict "name" "AWS_ACCESS_KEY_ID" "value" .Values.awsAccessKeyID)
      (dict "name" "AWS_SECRET_ACCESS_KEY" "value" .Values.awsSecretAccessKey)) -}}
{{- end -}}
{{- $extra := dict -}}
{{- range .Values.extraEnv }}{{ $_ := set $extra .name . }}{{ end -}}
{{- $merged := list -}}
{{- range $env -}}
{{- if not (hasKey $extra .name) }}{{ $merged = append $merged . }}{{ end -}}
{{- end -}}
{{- concat $merged (default list .Values.extraEnv) | toYaml -}}
{{- end -}}

{{/* Not empty if the option, true by default, is on: dict "values" .Values "option" "name" "env" "NAME"; "default" "false" for others */}}
{{- define "node-termination-handler.isOn" -}}
{{- $text := default (default "true" .default) (include "node-termination-handler.text" (get .values .option)) -}}
{{- range .values.extraEnv -}}
{{- if and (eq .name $.env) .value }}{{ $text = toString .value }}{{ end -}}
{{- end -}}
{{- if not (regexMatch "^(0|[fF]|[fF]alse|FALSE)$" $text) }}true{{ end -}}
{{- end -}}

{{/* Not empty if rollouts bring the replacements of pods. */}}
{{- define "node-termination-handler.surges" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "surgeSingletons" "env" "SURGE_SINGLETONS" "default" "false") -}}
{{- end -}}

{{/* Not empty if Karpenter drains its own nodes. */}}
{{- define "node-termination-handler.delegates" -}}
{{- if eq (include "node-termination-handler.mode" .) "queue" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "drainByKarpenter" "env" "DRAIN_BY_KARPENTER" "default" "false") -}}
{{- end -}}
{{- end -}}

{{/* Not empty if nodes whose instance has ended get the out-of-service taint. */}}
{{- define "node-termination-handler.outOfService" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "enableOutOfServiceTaint" "env" "ENABLE_OUT_OF_SERVICE_TAINT" "default" "false") -}}
{{- end -}}

{{/* Not empty if nodes say by conditions how far their drains are. */}}
{{- define "node-termination-handler.nodeConditions" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "nodeConditions" "env" "NODE_CONDITIONS") -}}
{{- end -}}

{{/* Not empty if the pods on the nodes report to the leader and drain nothing. */}}
{{- define "node-termination-handler.reportsOnly" -}}
{{- if eq (include "node-termination-handler.mode" .) "IMDS" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "reportOnly" "env" "REPORT_ONLY" "default" "false") -}}
{{- end -}}
{{- end -}}

{{- define "node-termination-handler.hasMetrics" -}}
{{- $default := eq (include "node-termination-handler.mode" .) "queue" | toString -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "enablePrometheusServer" "env" "ENABLE_PROMETHEUS_SERVER" "default" $default) -}}
{{- end -}}

{{- define "node-termination-handler.metricsPort" -}}
{{- default "9092" (include "node-termination-handler.text" .Values.prometheusServerPort) -}}
{{- end -}}

{{/* In queue mode the value enableProbesServer has no effect: NTH's Deployment always has its probes. */}}
{{- define "node-termination-handler.hasProbes" -}}
{{- if eq (include "node-termination-handler.mode" .) "queue" -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "" "env" "ENABLE_PROBES_SERVER") -}}
{{- else -}}
{{- include "node-termination-handler.isOn" (dict "values" .Values "option" "enableProbesServer" "env" "ENABLE_PROBES_SERVER" "default" "false") -}}
{{- end -}}
{{- end -}}

{{- define "node-termination-handler.httpGet" -}}
{{- $given := (include "node-termination-handler.group" (dict "of" . "name" "probes") | fromYaml).httpGet -}}
{{- $httpGet := get (.Files.Get "files/groups.yaml" | fromYaml) "probes" | dig "httpGet" dict -}}
{{- range $key, $value := default dict $given -}}
{{- if include "node-termination-handler.text" $value }}{{ $_ := set $httpGet $key $value }}{{ end -}}
{{- end -}}
{{- toYaml $httpGet -}}
{{- end -}}

{{/* Mistakes in the values that the schema cannot find. */}}
{{- define "node-termination-handler.check" -}}
{{- if eq (include "node-termination-handler.mode" .) "queue" -}}
{{- include "node-termination-handler.checkQueue" . -}}
{{- include "node-termination-handler.checkHeartbeats" . -}}
{{- end -}}
{{- $daemonSet := or (include "node-termination-handler.both" .) (eq (include "node-termination-handler.mode" .) "IMDS") -}}
{{- if and $daemonSet (not (include "node-termination-handler.targets" . | fromYamlArray)) -}}
{{- fail (printf "targetNodeOs is %q, which names no operating system: it has linux, windows or both, as in \"linux windows\"." .Values.targetNodeOs) -}}
{{- end -}}
{{- if include "node-termination-handler.reportsOnly" . -}}
{{- fail "reportOnly is on, and nobody leads without a Deployment, so no node would be drained: set queueURL to the URL of a queue, with daemonset.create, or to none." -}}
{{- end -}}
{{- include "node-termination-handler.checkImage" . -}}
{{- include "node-termination-handler.checkPorts" . -}}
{{- $rbac := include "node-termination-handler.group" (dict "of" . "name" "rbac") | fromYaml -}}
{{- range .Values.extraEnv -}}
{{- if and $rbac.create (eq .name "LEADER_ELECT_RESOURCE_NAME") -}}
{{- fail "extraEnv has LEADER_ELECT_RESOURCE_NAME, but the chart's rights are for the Lease that has the name of the release: remove it; fullnameOverride names both." -}}
{{- end -}}
{{- end -}}
{{- $old := pick (default dict .Values.securityContext) "runAsUserID" "runAsGroupID" | keys | sortAlpha -}}
{{- if $old -}}
{{- fail (printf "securityContext has %s, as in charts of NTH before 0.16, which is no field of a container: remove it, or name it runAsUser or runAsGroup." (join " and " $old)) -}}
{{- end -}}
{{- if and .Values.webhookTemplateConfigMapName (not .Values.webhookTemplateConfigMapKey) -}}
{{- fail "webhookTemplateConfigMapName is set, but webhookTemplateConfigMapKey is not. It is the key of the template in the ConfigMap." -}}
{{- end -}}
{{- end -}}

{{- define "node-termination-handler.checkQueue" -}}
{{- $given := false -}}
{{- range .Values.extraEnv }}{{ if eq .name "QUEUE_URL" }}{{ $given = true }}{{ end }}{{ end -}}
{{- if not (or .Values.queueURL $given) -}}
{{- fail "queueURL is not set. It is the URL of the SQS queue that EventBridge sends the notices to, such as https://sqs.us-east-1.amazonaws.com/123456789012/nth. Without a queue, set it to none, or enableSqsTerminationDraining to false: docs/imds.md compares them." -}}
{{- end -}}
{{- /* What Argo CD or Flux fills in after Helm has rendered it is not looked at. */ -}}
{{- if and .Values.queueURL (not (regexMatch "[<$]|^ *none *$|^ *https?://[^/?#]+/[0-9]{12}/[A-Za-z0-9_-]+(\\.fifo)? *$" .Values.queueURL)) -}}
{{- fail (printf "queueURL is %q, which is not the URL of a queue. It has the form https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits: aws sqs get-queue-url --queue-name NAME prints it. Without a queue it is none." .Values.queueURL) -}}
{{- end -}}
{{- end -}}

{{- define "node-termination-handler.checkImage" -}}
{{- $image := include "node-termination-handler.group" (dict "of" . "name" "image") | fromYaml -}}
{{- $repository := default "" $image.repository -}}
{{- $tag := include "node-termination-handler.text" $image.tag -}}
{{- $from := "If you did not set it, it comes from the release before: use --reset-then-reuse-values instead of --reuse-values." -}}
{{- if regexMatch "(amazon|aws-ec2)/aws-node-termination-handler(:[^/]*)?(@.*)?$" $repository -}}
{{- fail (printf "image.repository is %s, the image of AWS Node Termination Handler: set image.repository to the image of this handler, and remove image.tag, see docs/install.md, step 2. %s" $repository $from) -}}
{{- end -}}
{{- $parts := "^([^@]*?)(?::([^/@]*))?(?:@(.*))?$" -}}
{{- /* NAME@sha256 with the digest as the tag is a form that people use. */ -}}
{{- if and (regexMatch "@|:[^/]*$" $repository) (not (hasSuffix "@sha256" $repository)) -}}
{{- fail (printf "image.repository is %s, which has a tag or a digest in it: set image.repository to %s, and image.tag to %s." $repository (regexReplaceAll $parts $repository "${1}") (coalesce (regexReplaceAll $parts $repository "${3}") (regexReplaceAll $parts $repository "${2}"))) -}}
{{- end -}}
{{- /* An image of one's own may have a tag of this form. It is NTH's if the repository is NTH's, mirrored or not named, or if the values are those of NTH's chart. */ -}}
{{- $fromNTH := or (regexMatch "^$|(^|/)aws-node-termination-handler$" $repository) (not (hasKey .Values "dashboard")) -}}
{{- if and $fromNTH (regexMatch "^v1\\.[0-9]+\\.[0-9]+$" $tag) -}}
{{- fail (printf "image.tag is %s, a tag of the image of AWS Node Termination Handler: remove it, or set it to the tag of your image of this handler. %s" $tag $from) -}}
{{- end -}}
{{- if not $repository -}}
{{- fail (printf "image.repository is not set, and no image is published yet. Build one and push it to your registry, which is one command (docs/install.md, step 2: make image VERSION=%s PUSH=REGISTRY/NAME:%s), then set image.repository to REGISTRY/NAME." .Chart.AppVersion .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A pod and a Service have to name their ports. The program takes 0 for any free one. */}}
{{- define "node-termination-handler.checkPorts" -}}
{{- $says := "%s is 0, any free port, but a pod has to name its ports: remove the value for the port %s, or set another port%s." -}}
{{- if and (include "node-termination-handler.hasMetrics" .) (regexMatch "^-?0+$" (include "node-termination-handler.metricsPort" .)) -}}
{{- fail (printf $says "prometheusServerPort" "9092" ". Without metrics: enablePrometheusServer=false") -}}
{{- end -}}
{{- $httpGet := include "node-termination-handler.httpGet" . | fromYaml -}}
{{- if and (include "node-termination-handler.hasProbes" .) (regexMatch "^0+$" (include "node-termination-handler.text" $httpGet.port)) -}}
{{- fail (printf $says "probes.httpGet.port" "8080" "") -}}
{{- end -}}
{{- $port := include "node-termination-handler.text" $httpGet.port -}}
{{- $ports := dict "PROBES_SERVER_PORT" $port "PROMETHEUS_SERVER_PORT" (include "node-termination-handler.metricsPort" .) -}}
{{- range .Values.extraEnv -}}
{{- if and (hasKey $ports .name) (ne (get $ports .name) (include "node-termination-handler.text" .value)) -}}
{{- fail (printf "extraEnv has %s, but the pod's ports, probes and monitors go by the values: remove it, and set probes.httpGet.port or prometheusServerPort." .name) -}}
{{- end -}}
{{- end -}}
{{- if and (include "node-termination-handler.hasMetrics" .) (include "node-termination-handler.hasProbes" .) (eq $port (include "node-termination-handler.metricsPort" .)) -}}
{{- fail (printf "prometheusServerPort and probes.httpGet.port are both %s: the two servers need a port each." $port) -}}
{{- end -}}
{{- $bound := include "node-termination-handler.text" .Values.bindAddress -}}
{{- if and (include "node-termination-handler.hasProbes" .) (regexMatch "^ *(127\\.[0-9.]+|::1) *(, *(127\\.[0-9.]+|::1) *)*$" $bound) -}}
{{- fail (printf "bindAddress is %s, but a kubelet sends its probes to the address of the pod: add that by extraEnv (docs/security.md, On which addresses), or turn the probes off." $bound) -}}
{{- end -}}
{{- end -}}

{{/* Fails if the pods of a DaemonSet would read nothing, and end. */}}
{{- define "node-termination-handler.checkKinds" -}}
{{- $on := "" -}}
{{- range list
      (dict "option" "enableSpotInterruptionDraining" "env" "ENABLE_SPOT_INTERRUPTION_DRAINING")
      (dict "option" "enableScheduledEventDraining" "env" "ENABLE_SCHEDULED_EVENT_DRAINING")
      (dict "option" "enableASGLifecycleDraining" "env" "ENABLE_ASG_LIFECYCLE_DRAINING")
      (dict "option" "enableRebalanceMonitoring" "env" "ENABLE_REBALANCE_MONITORING" "default" "false")
      (dict "option" "enableRebalanceDraining" "env" "ENABLE_REBALANCE_DRAINING" "default" "false") -}}
{{- $on = print $on (include "node-termination-handler.isOn" (merge (dict "values" $.Values) .)) -}}
{{- end -}}
{{- if not $on -}}
{{- fail "the values turn off every kind of notice that the pods of the DaemonSet could read: leave enableSpotInterruptionDraining or another on, or set daemonset.create to false." -}}
{{- end -}}
{{- end -}}

{{- define "node-termination-handler.checkHeartbeats" -}}
{{- $interval := include "node-termination-handler.text" .Values.heartbeatInterval | int -}}
{{- $until := include "node-termination-handler.text" .Values.heartbeatUntil | int -}}
{{- if and (gt $until 0) (le $interval 0) -}}
{{- fail (printf "heartbeatUntil is %d, but heartbeatInterval is not set, and without it there are no heartbeats: set heartbeatInterval, or remove heartbeatUntil." $until) -}}
{{- end -}}
{{- if and (gt $until 0) (gt $interval $until) -}}
{{- fail (printf "heartbeatInterval is %d, longer than heartbeatUntil, %d: heartbeats would end before the first." $interval $until) -}}
{{- end -}}
{{- end -}}
