variable "cluster_name" {
  description = "Name of the cluster; with Pod Identity, that of the EKS cluster."
  type        = string
}

variable "name" {
  description = "Begins the names of what is made; nth-CLUSTER if it is null."
  type        = string
  default     = null
}

variable "namespace" {
  description = "Namespace of the ServiceAccount."
  type        = string
  default     = "node-termination-handler"
}

variable "service_account" {
  description = "The ServiceAccount that gets the role."
  type        = string
  default     = "node-termination-handler"
}

variable "identity" {
  description = "How the pod gets the role. PodIdentity associates it; for IRSA annotate the ServiceAccount with role_arn."
  type        = string
  default     = "PodIdentity"

  validation {
    condition     = contains(["PodIdentity", "IRSA"], var.identity)
    error_message = "identity is PodIdentity or IRSA."
  }
}

variable "oidc_provider" {
  description = "IRSA only: the cluster's OIDC issuer without https://"
  type        = string
  default     = ""
}

variable "start_checks" {
  description = "Whether the program may read the queue's attributes. Without it the start tells less of a wrong queue."
  type        = bool
  default     = true
}

variable "tag_check" {
  description = "Whether the program may ask EC2 for instances, as checkTagBeforeDraining needs it."
  type        = bool
  default     = true
}

variable "lifecycle_hooks" {
  description = "none: no events of Auto Scaling; existing: complete the hooks that the groups have; create: also make a termination hook for each group in groups."
  type        = string
  default     = "existing"

  validation {
    condition     = contains(["none", "existing", "create"], var.lifecycle_hooks)
    error_message = "lifecycle_hooks is none, existing or create."
  }
}

variable "groups" {
  description = "Names of the Auto Scaling groups whose lifecycle events and hooks are this cluster's; * for all of the account."
  type        = list(string)
  default     = ["*"]
}

variable "hook_timeout" {
  description = "Seconds that a created hook leaves for a drain, if no heartbeat prolongs it."
  type        = number
  default     = 300
}

variable "disabled_rules" {
  description = "Rules to make but not to switch on: SpotInterruption, RebalanceRecommendation, StateChange, ScheduledChange."
  type        = set(string)
  default     = []
}

variable "alarm_topic" {
  description = "ARN of the SNS topic that the alarms notify."
  type        = string
  default     = ""
}

variable "oldest_message_seconds" {
  description = "Age of a message at which the alarm is raised. The queue drops messages after 300 seconds."
  type        = number
  default     = 240
}
