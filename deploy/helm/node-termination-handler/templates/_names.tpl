{{/* The names and labels follow the rules of NTH's chart, so that a release of it can be upgraded in place. */}}

{{- define "node-termination-handler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "node-termination-handler.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "node-termination-handler.serviceAccount" -}}
{{- $account := include "node-termination-handler.group" (dict "of" . "name" "serviceAccount") | fromYaml -}}
{{- default (ternary (include "node-termination-handler.fullname" .) "default" (not (not $account.create))) $account.name -}}
{{- end -}}

{{/* The name of objects without a namespace: releases of one name may be in several namespaces. */}}
{{- define "node-termination-handler.clusterName" -}}
{{- printf "%s.%s" (include "node-termination-handler.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* The name of the ConfigMap with the policy file; that of the dashboard may be in the same namespace. */}}
{{- define "node-termination-handler.policyName" -}}
{{- $name := include "node-termination-handler.fullname" . -}}
{{- /* Beside a Deployment the name of the DaemonSet ends with -node, which is not to be cut off. */ -}}
{{- if .leaseName -}}
{{- printf "%s-node-policy" (trimSuffix "-node" $name | trunc 51 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-policy" (trunc 56 $name | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* The labels that all pods of the release have. */}}
{{- define "node-termination-handler.podSelector" -}}
app.kubernetes.io/name: {{ include "node-termination-handler.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- if eq (include "node-termination-handler.mode" .) "queue" }}
app.kubernetes.io/component: deployment
{{- else }}
app.kubernetes.io/component: daemonset
{{- end }}
{{- end -}}

{{/*
The selectors of a Deployment and of a DaemonSet cannot be changed. "targetOs" tells the two DaemonSets apart; other
objects have the labels of that for Linux.
*/}}
{{- define "node-termination-handler.selector" -}}
{{ include "node-termination-handler.podSelector" . }}
{{- if eq (include "node-termination-handler.mode" .) "IMDS" }}
kubernetes.io/os: {{ default "linux" .targetOs }}
{{- end }}
{{- end -}}

{{/* The operating systems that a DaemonSet is for, as a list. */}}
{{- define "node-termination-handler.targets" -}}
{{- $text := default "linux" .Values.targetNodeOs | lower -}}
{{- $targets := list -}}
{{- range list "linux" "windows" }}{{ if contains . $text }}{{ $targets = append $targets . }}{{ end }}{{ end -}}
{{- toYaml $targets -}}
{{- end -}}

{{/* The labels of all objects. Those of the selectors stay; customLabels go before the others. */}}
{{- define "node-termination-handler.labels" -}}
{{- $labels := dict
      "app.kubernetes.io/part-of" .Release.Name
      "app.kubernetes.io/version" .Chart.AppVersion
      "app.kubernetes.io/managed-by" .Release.Service
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- mergeOverwrite $labels (default dict .Values.customLabels) (include "node-termination-handler.selector" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* The labels of the pods: dict "of" . "own" (those of the values). */}}
{{- define "node-termination-handler.podLabels" -}}
{{- $labels := dict "k8s-app" (include "node-termination-handler.name" .of) -}}
{{- mergeOverwrite $labels .own (include "node-termination-handler.selector" .of | fromYaml) | toYaml -}}
{{- end -}}

{{/*
metadata of an object of this release: dict "of" . "in" (values with namespace, labels, annotations; may be empty).
The DaemonSet for Windows has the suffix of NTH's chart.
*/}}
{{- define "node-termination-handler.metadata" -}}
{{- $name := include "node-termination-handler.fullname" .of -}}
name: {{ eq (default "" .of.targetOs) "windows" | ternary (printf "%s-win" (trunc 59 $name | trimSuffix "-")) $name }}
namespace: {{ default .of.Release.Namespace .in.namespace }}
labels:
  {{- mergeOverwrite (include "node-termination-handler.labels" .of | fromYaml) (default dict .in.labels) | toYaml | nindent 2 }}
{{- with .in.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
