{{/*
The kinds of admission policies of this release, as a list. There are none where the API server does not serve them,
and none for the ServiceAccount "default", which other pods have too. Kubernetes serves them since 1.30; without a
cluster, Helm knows a version but no kinds.
*/}}
{{- define "node-termination-handler.admissionPolicies" -}}
{{- $values := include "node-termination-handler.group" (dict "of" . "name" "admissionPolicy") | fromYaml -}}
{{- $known := or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $kinds := list -}}
{{- if and $values.create $known (ne (include "node-termination-handler.serviceAccount" .) "default") -}}
{{- $kinds = list "nodes" -}}
{{- /* Where the rights are made by hand, the program may have more of them than it needs. */ -}}
{{- $rbac := include "node-termination-handler.group" (dict "of" . "name" "rbac") | fromYaml -}}
{{- if not (and $rbac.create (include "node-termination-handler.reportsOnly" .)) -}}
{{- $kinds = append (append $kinds "pods") "conditions" -}}
{{- if and $values.evictions (eq (include "node-termination-handler.mode" .) "IMDS") -}}
{{- $kinds = append $kinds "evictions" -}}
{{- end -}}
{{- if include "node-termination-handler.surges" . -}}
{{- $kinds = append $kinds "deployments" -}}
{{- end -}}
{{- if include "node-termination-handler.delegates" . -}}
{{- $kinds = append $kinds "nodeclaims" -}}
{{- end -}}
{{- if include "node-termination-handler.nodeConditions" . -}}
{{- $kinds = append $kinds "nodeconditions" -}}
{{- end -}}
{{- $kinds = append $kinds "events" -}}
{{- if eq (include "node-termination-handler.mode" .) "queue" -}}
{{- $kinds = append $kinds "leases" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $kinds -}}
{{- end -}}

{{/* The head of a policy, to which its rules are added: dict "of" . "kind" "nodes" */}}
{{- define "node-termination-handler.admissionPolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "node-termination-handler.clusterName" .of }}.{{ .kind }}
  labels:
    {{- include "node-termination-handler.labels" .of | nindent 4 }}
spec:
  failurePolicy: {{ default "Fail" .failurePolicy }}
{{- end -}}

{{/* The binding of a policy: dict "of" . "kind" "nodes" */}}
{{- define "node-termination-handler.admissionBinding" -}}
{{- $name := printf "%s.%s" (include "node-termination-handler.clusterName" .of) .kind -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "node-termination-handler.labels" .of | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
  {{- if .params }}
  # All pods in the namespace of the eviction.
  paramRef: {selector: {}, parameterNotFoundAction: Allow}
  {{- end }}
{{- end -}}

{{/* Whom a policy is about. */}}
{{- define "node-termination-handler.admissionSubject" -}}
matchConditions:
  - name: handler
    expression: request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:{{ include "node-termination-handler.serviceAccount" . }}"
{{- end -}}

{{/*
The node of the pod whose token is used, in IMDS mode: the API server writes it into the token of a pod and tells it
here. It is empty for a token that belongs to no pod, and on API servers before 1.30. Such a token may change nothing.
https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
*/}}
{{- define "node-termination-handler.ownNode" -}}
{{- if eq (include "node-termination-handler.mode" .) "IMDS" -}}
- {name: node, expression: 'request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")'}
{{- end -}}
{{- end -}}

{{/* An expression that says whose token it is. */}}
{{- define "node-termination-handler.whose" -}}
(variables.node == "" ? "the token names no node" : "the token is of a pod on node " + variables.node)
{{- end -}}
