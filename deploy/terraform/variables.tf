variable "cluster_name" {
  description = "Name of the cluster; with Pod Identity, that of the EKS cluster."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z._-]{0,99}$", var.cluster_name))
    error_message = "cluster_name must be the name of a cluster: letters, digits, - _ and dots."
  }
}

variable "name" {
  description = "Prefix of the names of all resources; nth-CLUSTER if it is null, with - for dots in it."
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
  description = "How the pod gets the role. PodIdentity associates it; for IRSA annotate the ServiceAccount with role_arn. Existing gives the permissions to the role role_name, such as that of the nodes."
  type        = string
  default     = "PodIdentity"

  validation {
    condition     = contains(["PodIdentity", "IRSA", "Existing"], var.identity)
    error_message = "identity must be PodIdentity, IRSA or Existing."
  }
}

variable "role_name" {
  description = "Existing only: the name of the role, without its path."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9+=,.@_-]{0,64}$", var.role_name))
    error_message = "role_name is ${var.role_name}, and has to be the name of a role, without its path."
  }
}

variable "oidc_provider" {
  description = "IRSA only: the cluster's OIDC issuer without https://"
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = can(regex("^[^:]*$", var.oidc_provider))
    error_message = "oidc_provider must be the issuer without https://"
  }
}

variable "start_checks" {
  description = "Whether the program may read the queue's attributes. Without it the program finds fewer mistakes at its start."
  type        = bool
  default     = true
}

variable "tag_check" {
  description = "Whether the program may call ec2:DescribeInstances, which checkTagBeforeDraining needs."
  type        = bool
  default     = true
}

variable "status_poll" {
  description = "Whether the program may call ec2:DescribeInstanceStatus. With it, it finds scheduled events whose notices were lost, and impaired instances."
  type        = bool
  default     = true
}

variable "load_balancers" {
  description = "Whether the program may call elasticloadbalancing:DescribeTargetHealth. With it, drains wait until the instance has left the target groups of the AWS Load Balancer Controller."
  type        = bool
  default     = true
}

variable "replacement_first" {
  description = "Whether the program may have the groups in groups replace their instances, which rules with first=replacement need. It needs lifecycle_hooks, and groups that name the groups."
  type        = bool
  default     = false
}

variable "doctor" {
  description = "Whether the role may read what doctor checks, so that one run in the pod checks everything. These permissions change nothing."
  type        = bool
  default     = true
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the role's permissions."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:[^:]+:iam::[^:]+:policy/.+)?$", var.permissions_boundary))
    error_message = "permissions_boundary must be the ARN of a policy."
  }
}

variable "role_path" {
  description = "The role's path."
  type        = string
  default     = "/"

  validation {
    condition     = can(regex("^/([!-~]+/)?$", var.role_path))
    error_message = "role_path must begin and end with a slash."
  }
}

variable "key_arn" {
  description = "ARN of the KMS key that encrypts both queues; without it SQS's own key does. docs/security.md has what its policy must allow."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:[^:]+:kms:[^:]+:[0-9]+:key/.+)?$", var.key_arn))
    error_message = "key_arn must be the ARN of a key; an alias is none."
  }
}

variable "tags" {
  description = "Tags of all resources that can have tags."
  type        = map(string)
  default     = {}
}

variable "lifecycle_hooks" {
  description = "none: no events of Auto Scaling; existing: complete the hooks that the groups have; create: also create a termination hook for each group in groups."
  type        = string
  default     = "existing"

  validation {
    condition     = contains(["none", "existing", "create"], var.lifecycle_hooks)
    error_message = "lifecycle_hooks must be none, existing or create."
  }
}

variable "groups" {
  description = "Names of the Auto Scaling groups whose lifecycle events and hooks belong to this cluster; * for all groups of the account. How many there are must be known when Terraform plans."
  type        = list(string)
  default     = ["*"]
}

variable "group_tag" {
  description = "Key of a tag that a group must have for the role to complete its hooks, such as kubernetes.io/cluster/NAME; without it no tag is needed."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[-A-Za-z0-9 _.:/=+@]{0,128}$", var.group_tag))
    error_message = "group_tag must be the key of a tag."
  }
}

variable "hook_timeout" {
  description = "Timeout of a created hook in seconds, which heartbeats extend."
  type        = number
  default     = 300
  nullable    = false

  validation {
    condition     = var.hook_timeout >= 30 && var.hook_timeout <= 7200
    error_message = "hook_timeout must be 30 to 7200 seconds."
  }
}

variable "disabled_rules" {
  description = "Kinds of notices that are not sent: SpotInterruption, RebalanceRecommendation, StateChange, ScheduledChange, CapacityReservationInterruption, CapacityBlockExpiration. Their rules are created, but disabled."
  type        = set(string)
  default     = []
  nullable    = false

  validation {
    condition = length(setsubtract(var.disabled_rules, [
      "SpotInterruption", "RebalanceRecommendation", "StateChange", "ScheduledChange",
      "CapacityReservationInterruption", "CapacityBlockExpiration",
    ])) == 0
    error_message = "disabled_rules has a name that is no kind of notice. The description of the variable lists them."
  }
}

variable "single_rule" {
  description = "Whether one rule sends all kinds of notices, instead of a rule for each. An account has 300 rules in a region."
  type        = bool
  default     = false
}

variable "own_rules" {
  description = "Whether the module has rules that fill the queue. Without them topic_arn or delivery_role_arn says what does."
  type        = bool
  default     = true
}

variable "topic_arn" {
  description = "ARN of the topic that the module fan-out has created, to which the queue subscribes. It must be known when Terraform plans."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:[^:]+:sns:[^:]+:[0-9]+:[A-Za-z0-9_-]+)?$", var.topic_arn))
    error_message = "topic_arn must be the ARN of a topic."
  }
}

variable "delivery_role_arn" {
  description = "ARN of the role with which a subscriber of a custom event bus, or a rule of another account, sends to the queue."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:[^:]+:iam::[0-9]+:role/.+)?$", var.delivery_role_arn))
    error_message = "delivery_role_arn must be the ARN of a role."
  }
}

variable "sender_arn" {
  description = "ARN of a role or user of yours that may also send to the queue, for simulate and to move messages back from the dead-letter queue. Everybody else who is no AWS service is denied it."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(arn:[^:]+:iam::[0-9]+:(role|user)/.+)?$", var.sender_arn))
    error_message = "sender_arn must be the ARN of a role or a user."
  }
}

variable "alarm_topic" {
  description = "ARN of the SNS topic that the alarms notify."
  type        = string
  default     = ""
}

variable "unread_minutes" {
  description = "Minutes for which messages wait in the queue, while nobody receives them, until the alarm is raised."
  type        = number
  default     = 3
  nullable    = false

  validation {
    condition     = var.unread_minutes >= 1
    error_message = "unread_minutes must be 1 or more."
  }
}
