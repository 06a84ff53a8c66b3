{{/* One option's value as text; nothing where it is not set. Numbers from values are float64, whose own text may be 1e+06. */}}
{{- define "node-termination-handler.text" -}}
{{- if not (kindIs "invalid" .) -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The name of the Secret that the user made for an option, if any. */}}
{{- define "node-termination-handler.userSecret" -}}
{{- get .values (printf "%sSecretName" .option) | default "" -}}
{{- end -}}

{{/* What belongs into the Secret of this release: a map of keys to texts. */}}
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

{{/* The container's environment. An entry of extraEnv takes the place of ours: two of one name are an error on the server. */}}
{{- define "node-termination-handler.env" -}}
{{- $env := list
      (dict "name" "NODE_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "spec.nodeName")))
      (dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name")))
      (dict "name" "NAMESPACE" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace")))
      (dict "name" "LEADER_ELECT_RESOURCE_NAME" "value" (include "node-termination-handler.fullname" .))
      (dict "name" "PROBES_SERVER_PORT" "value" (include "node-termination-handler.text" .Values.probes.httpGet.port))
      (dict "name" "PROBES_SERVER_ENDPOINT" "value" .Values.probes.httpGet.path) -}}
{{- range .Files.Get "files/options.yaml" | fromYamlArray -}}
{{- $text := include "node-termination-handler.text" (get $.Values .value) -}}
{{- $userSecret := "" -}}
{{- if .secret }}{{ $userSecret = include "node-termination-handler.userSecret" (dict "values" $.Values "option" .value) }}{{ end -}}
{{- if .noEffect -}}
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
{{- if .Values.awsAccessKeyID -}}
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

{{/* Not empty unless the option, true by default, is turned off: dict "values" .Values "option" "name" */}}
{{- define "node-termination-handler.isOn" -}}
{{- if ne (include "node-termination-handler.text" (get .values .option)) "false" }}true{{ end -}}
{{- end -}}

{{- define "node-termination-handler.metricsPort" -}}
{{- default "9092" (include "node-termination-handler.text" .Values.prometheusServerPort) -}}
{{- end -}}

{{/* What is wrong with the values and no schema can say. */}}
{{- define "node-termination-handler.check" -}}
{{- if eq (include "node-termination-handler.text" .Values.enableSqsTerminationDraining) "false" -}}
{{- fail "enableSqsTerminationDraining is false, which asks for the IMDS mode: this handler has the queue mode only. Remove the value and set queueURL, see docs/migrate-from-nth.md." -}}
{{- end -}}
{{- if not .Values.queueURL -}}
{{- fail "queueURL is not set: it is the URL of the SQS queue that EventBridge sends the notices to, such as https://sqs.us-east-1.amazonaws.com/123456789012/nth." -}}
{{- end -}}
{{- if regexMatch "(amazon|aws-ec2)/aws-node-termination-handler$" (default "" .Values.image.repository) -}}
{{- fail (printf "image.repository is %s, the image of AWS Node Termination Handler: remove image.repository and image.tag, or set them to where this handler's image is." .Values.image.repository) -}}
{{- end -}}
{{- if and .Values.webhookTemplateConfigMapName (not .Values.webhookTemplateConfigMapKey) -}}
{{- fail "webhookTemplateConfigMapName is set and webhookTemplateConfigMapKey is not: it is the key of the template in the ConfigMap." -}}
{{- end -}}
{{- end -}}
