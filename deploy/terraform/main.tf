# The AWS resources of node-termination-handler for one cluster: the queue, the rules that fill
# it, and the role that may read it. deploy/cloudformation creates the same.

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  name       = coalesce(var.name, "nth-${replace(var.cluster_name, ".", "-")}") # a queue's name has no dots
  partition  = data.aws_partition.current.partition
  region     = data.aws_region.current.id
  account    = data.aws_caller_identity.current.account_id
  all_groups = join(",", var.groups) == "*"
  hooks      = var.lifecycle_hooks != "none"
  key        = var.key_arn != ""
  senders    = [for arn in [var.delivery_role_arn, var.sender_arn] : arn if arn != ""]

  # A rule for each kind of notice, and the seconds for which EventBridge tries to deliver its
  # events: as long as they are of use. Then they go to the dead-letter queue.
  kinds = {
    SpotInterruption = {
      max_age = 120
      pattern = { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] }
    }
    RebalanceRecommendation = {
      max_age = 3600
      pattern = { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] }
    }
    StateChange = {
      max_age = 600
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance State-change Notification"]
        detail      = { state = local.states }
      }
    }
    ScheduledChange = {
      max_age = 86400
      pattern = {
        source      = ["aws.health"]
        detail-type = ["AWS Health Event"]
        detail      = { service = ["EC2"], eventTypeCategory = ["scheduledChange"] }
      }
    }
    LifecycleAction = {
      max_age = 3600
      pattern = merge({
        source      = ["aws.autoscaling"]
        detail-type = ["EC2 Instance-terminate Lifecycle Action", "EC2 Instance-launch Lifecycle Action"]
      }, local.all_groups ? {} : { detail = { AutoScalingGroupName = var.groups } })
    }
    CapacityReservationInterruption = {
      max_age = 120
      pattern = {
        source = ["aws.ec2"]
        detail-type = [
          "EC2 Capacity Reservation Instance Interruption Warning",
          "EC2 Interruptible Capacity Reservation Instance Interruption Warning", # its older name
        ]
      }
    }
    CapacityBlockExpiration = {
      max_age = 2400
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"] # the older name
      }
    }
  }
  disabled_rules = setunion(var.disabled_rules, local.hooks ? [] : ["LifecycleAction"])
  states         = ["stopping", "stopped", "shutting-down", "terminated"]

  # One rule for all has the filters of all kinds: each lets in what lacks its field.
  single = {
    Notices = {
      max_age = 86400
      pattern = {
        source      = ["aws.autoscaling", "aws.ec2", "aws.health"]
        detail-type = flatten([for name, kind in local.kinds : kind.pattern.detail-type if !contains(local.disabled_rules, name)])
        detail = merge({
          state             = concat(local.states, [{ exists = false }])
          service           = ["EC2", { exists = false }]
          eventTypeCategory = ["scheduledChange", { exists = false }]
          }, local.all_groups ? {} : {
          "$or" = [{ AutoScalingGroupName = var.groups }, { AutoScalingGroupName = [{ exists = false }] }]
        })
      }
    }
  }
  rules = { for name, rule in merge(local.kinds, local.single) : name => rule if var.own_rules && (name == "Notices") == var.single_rule }
}

resource "aws_sqs_queue" "queue" {
  name                    = local.name
  sqs_managed_sse_enabled = local.key ? null : true # EventBridge cannot use the AWS-managed KMS key
  kms_master_key_id       = local.key ? var.key_arn : null
  # Four days: scheduled changes come days ahead, hooks stay open for hours, and both must outlive a
  # weekend without a replica that runs. A notice that comes late forces nothing.
  message_retention_seconds = 345600
  tags                      = var.tags
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 10 # restarts are receives too
  })
}

# Messages that could not be delivered or read.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${local.name}-dead-letters"
  sqs_managed_sse_enabled   = local.key ? null : true
  kms_master_key_id         = local.key ? var.key_arn : null
  message_retention_seconds = 1209600
  tags                      = var.tags
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.queue.arn]
  })
}

resource "aws_sqs_queue_policy" "queue" {
  queue_url = aws_sqs_queue.queue.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in [{
        Sid       = "OwnRulesOnly"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.queue.arn
        Condition = { ArnEquals = { "aws:SourceArn" = values(aws_cloudwatch_event_rule.rule)[*].arn } }
      }] : statement if var.own_rules],
      [for statement in [{
        Sid       = "OwnTopicOnly"
        Effect    = "Allow"
        Principal = { Service = "sns.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.queue.arn
        Condition = { ArnEquals = { "aws:SourceArn" = var.topic_arn } }
      }] : statement if var.topic_arn != ""],
      [for statement in [{
        Sid       = "DeliveryRole"
        Effect    = "Allow"
        Principal = { AWS = var.delivery_role_arn }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.queue.arn
      }] : statement if var.delivery_role_arn != ""],
      # A policy of IAM would be enough within the account otherwise.
      [{
        Sid       = "NobodyElseSends"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.queue.arn
        Condition = merge(
          { BoolIfExists = { "aws:PrincipalIsAWSService" = "false" } },
          join("", local.senders) == "" ? {} : { ArnNotEquals = { "aws:PrincipalArn" = local.senders } },
        )
      }],
      [{
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.queue.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      }],
    )
  })
}

resource "aws_sqs_queue_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in [{
        Sid       = "OwnRulesOnly"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.dead_letters.arn
        Condition = { ArnEquals = { "aws:SourceArn" = values(aws_cloudwatch_event_rule.rule)[*].arn } }
      }] : statement if var.own_rules],
      [for statement in [{
        Sid       = "OwnTopicOnly"
        Effect    = "Allow"
        Principal = { Service = "sns.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.dead_letters.arn
        Condition = { ArnEquals = { "aws:SourceArn" = var.topic_arn } }
      }] : statement if var.topic_arn != ""],
      [for statement in [{
        Sid       = "DeliveryRole"
        Effect    = "Allow"
        Principal = { AWS = var.delivery_role_arn }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.dead_letters.arn
      }] : statement if var.delivery_role_arn != ""],
      [{
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.dead_letters.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      }],
    )
  })
}

resource "aws_cloudwatch_event_rule" "rule" {
  for_each = local.rules

  name          = "${local.name}-${trimsuffix(each.key, "Interruption")}" # 64 characters at most
  state         = contains(local.disabled_rules, each.key) ? "DISABLED" : "ENABLED"
  event_pattern = jsonencode(each.value.pattern)
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "queue" {
  for_each = local.rules

  rule      = aws_cloudwatch_event_rule.rule[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.queue.arn
  # EventBridge does not try again what a queue refuses.
  depends_on = [aws_sqs_queue_policy.queue, aws_sqs_queue_policy.dead_letters]

  dead_letter_config {
    arn = aws_sqs_queue.dead_letters.arn
  }

  retry_policy {
    maximum_event_age_in_seconds = each.value.max_age
    maximum_retry_attempts       = 185
  }
}

# The kinds that are switched off stay with the topic.
resource "aws_sns_topic_subscription" "queue" {
  for_each = toset(var.topic_arn == "" ? [] : [var.topic_arn])

  topic_arn            = each.value
  protocol             = "sqs"
  endpoint             = aws_sqs_queue.queue.arn
  raw_message_delivery = true
  redrive_policy       = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead_letters.arn })
  filter_policy_scope  = "MessageBody"
  filter_policy        = jsonencode({ detail-type = local.single.Notices.pattern.detail-type })
}

resource "aws_autoscaling_lifecycle_hook" "termination" {
  # By number: Terraform may not know the names of new groups when it plans. With the number in its name a hook that is
  # removed from a group is never the one that is added to it.
  for_each = { for number, group in var.groups : number => group if var.lifecycle_hooks == "create" }

  autoscaling_group_name = each.value
  name                   = "node-termination-handler-${each.key}"
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = var.hook_timeout
  default_result         = "CONTINUE"

  lifecycle {
    precondition {
      condition     = !contains(var.groups, "*")
      error_message = "groups must name the groups if lifecycle_hooks is create."
    }
  }
}

resource "aws_iam_role" "role" {
  for_each = toset(var.identity == "Existing" ? [] : ["role"])

  # The names of roles are global: a cluster in another region may have the same name.
  name                 = "${local.name}-${local.region}"
  path                 = var.role_path
  permissions_boundary = var.permissions_boundary == "" ? null : var.permissions_boundary
  description          = "node-termination-handler of ${var.cluster_name}"
  tags                 = var.tags
  assume_role_policy = var.identity == "PodIdentity" ? jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = {
        StringEquals = {
          "aws:RequestTag/eks-cluster-arn"            = "arn:${local.partition}:eks:${local.region}:${local.account}:cluster/${var.cluster_name}"
          "aws:RequestTag/kubernetes-namespace"       = var.namespace
          "aws:RequestTag/kubernetes-service-account" = var.service_account
        }
      }
    }]
    }) : jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRoleWithWebIdentity"
      Principal = { Federated = "arn:${local.partition}:iam::${local.account}:oidc-provider/${var.oidc_provider}" }
      Condition = {
        StringEquals = {
          "${var.oidc_provider}:aud" = "sts.amazonaws.com"
          "${var.oidc_provider}:sub" = "system:serviceaccount:${var.namespace}:${var.service_account}"
        }
      }
    }]
  })
}

# With all features it is deploy/iam/policy.json.
resource "aws_iam_role_policy" "role" {
  name = local.name # a role of the nodes may have those of several queues
  role = var.identity == "Existing" ? var.role_name : aws_iam_role.role["role"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Sid    = "Queue"
        Effect = "Allow"
        Action = concat(
          ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"],
          var.start_checks ? ["sqs:GetQueueAttributes"] : [],
        )
        Resource = aws_sqs_queue.queue.arn
      }],
      [for statement in [{
        Sid      = "Key"
        Effect   = "Allow"
        Action   = "kms:Decrypt"
        Resource = var.key_arn
      }] : statement if local.key],
      [for statement in [{
        Sid       = "Instances"
        Effect    = "Allow"
        Action    = "ec2:DescribeInstances"
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.tag_check],
      [for statement in [{
        Sid       = "InstanceStatus"
        Effect    = "Allow"
        Action    = "ec2:DescribeInstanceStatus"
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.status_poll],
      [for statement in [{
        Sid       = "TargetHealth"
        Effect    = "Allow"
        Action    = "elasticloadbalancing:DescribeTargetHealth"
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.load_balancers],
      [for statement in [{
        Sid       = "HookLimits"
        Effect    = "Allow"
        Action    = ["autoscaling:DescribeLifecycleHooks", "autoscaling:DescribeAutoScalingGroups"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if local.hooks],
      [for statement in [{
        Sid    = "Hooks"
        Effect = "Allow"
        Action = concat(
          ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"],
          var.replacement_first ? ["autoscaling:SetInstanceHealth"] : [],
        )
        Resource = [for group in var.groups : "arn:${local.partition}:autoscaling:${local.region}:${local.account}:autoScalingGroup:*:autoScalingGroupName/${group}"]
        Condition = merge(
          { StringEquals = { "aws:RequestedRegion" = local.region } },
          var.group_tag == "" ? {} : { Null = { "aws:ResourceTag/${var.group_tag}" = "false" } },
        )
      }] : statement if local.hooks],
      [for statement in [{
        Sid    = "ReplacementReads"
        Effect = "Allow"
        Action = [
          "autoscaling:DescribeAutoScalingInstances",
          "autoscaling:DescribeAutoScalingGroups",
          "autoscaling:DescribeLifecycleHooks",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.replacement_first],
      [for statement in [{
        Sid    = "DoctorReads"
        Effect = "Allow"
        Action = [
          "events:ListRuleNamesByTarget",
          "events:DescribeRule",
          "events:ListTargetsByRule",
          "sns:GetTopicAttributes",
          "sns:ListSubscriptionsByTopic",
          "sns:GetSubscriptionAttributes",
          "kms:DescribeKey",
          "kms:GetKeyPolicy",
          "ec2:DescribeInstances",
          "autoscaling:DescribeAutoScalingGroups",
          "autoscaling:DescribeLifecycleHooks",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.doctor],
      [for statement in [{
        Sid      = "DoctorReadsQueues"
        Effect   = "Allow"
        Action   = "sqs:GetQueueAttributes"
        Resource = [aws_sqs_queue.queue.arn]
      }] : statement if var.doctor],
    )
  })

  lifecycle {
    precondition {
      condition     = var.identity != "IRSA" || var.oidc_provider != ""
      error_message = "IRSA needs oidc_provider."
    }

    precondition {
      condition     = var.identity != "Existing" || var.role_name != ""
      error_message = "Existing needs role_name."
    }

    precondition {
      condition     = var.own_rules || var.topic_arn != "" || var.delivery_role_arn != ""
      error_message = "Without own_rules the queue needs topic_arn or delivery_role_arn."
    }

    precondition {
      condition     = !var.replacement_first || !contains(var.groups, "*")
      error_message = "groups must name the groups if replacement_first is true, because the role may then mark their instances as unhealthy, and the group replaces them."
    }

    precondition {
      condition     = length(local.name) <= 40 # a rule's name has 64 at most
      error_message = "name is longer than 40 characters: set a shorter one."
    }
  }
}

resource "aws_eks_pod_identity_association" "association" {
  for_each = toset(var.identity == "PodIdentity" ? ["role"] : []) # the cluster may be new too

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.role["role"].arn
  tags            = var.tags
}

# EventBridge does not count an event as failed if it went to the dead-letter queue. SQS counts
# only messages that others sent to that queue, not those that SQS moved there.
resource "aws_cloudwatch_metric_alarm" "undelivered" {
  alarm_name          = "${local.name}-undelivered"
  alarm_description   = "An event for the nodes of ${var.cluster_name} did not reach the queue: see the dead-letter queue and the queue's policy"
  alarm_actions       = var.alarm_topic == "" ? [] : [var.alarm_topic]
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  tags                = var.tags

  metric_query {
    id          = "undelivered"
    label       = "Events not delivered"
    expression  = "SUM(METRICS())"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = local.rules

    content {
      id          = "rule_${metric_query.key}"
      return_data = false

      metric {
        namespace   = "AWS/Events"
        metric_name = "FailedInvocations"
        dimensions  = { RuleName = aws_cloudwatch_event_rule.rule[metric_query.key].name }
        stat        = "Sum"
        period      = 60
      }
    }
  }

  metric_query {
    id          = "dead_letters"
    return_data = false

    metric {
      namespace   = "AWS/SQS"
      metric_name = "NumberOfMessagesSent"
      dimensions  = { QueueName = aws_sqs_queue.dead_letters.name }
      stat        = "Sum"
      period      = 60
    }
  }
}

# Messages that a replica works on are in flight, however long that takes; they do not count.
resource "aws_cloudwatch_metric_alarm" "unread" {
  alarm_name          = "${local.name}-unread"
  alarm_description   = "Notices for the nodes of ${var.cluster_name} wait in the queue, and nobody receives them: no replica runs, or it cannot read the queue"
  alarm_actions       = var.alarm_topic == "" ? [] : [var.alarm_topic]
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.queue.name }
  statistic           = "Minimum"
  period              = 60
  evaluation_periods  = var.unread_minutes
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  tags                = var.tags
}
