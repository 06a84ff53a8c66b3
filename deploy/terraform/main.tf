# What node-termination-handler needs of AWS, for one cluster: the queue, the rules that fill
# it, and the role that may read it. deploy/cloudformation has the same.

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
  name       = coalesce(var.name, "nth-${var.cluster_name}")
  partition  = data.aws_partition.current.partition
  region     = data.aws_region.current.id
  account    = data.aws_caller_identity.current.account_id
  all_groups = join(",", var.groups) == "*"
  hooks      = var.lifecycle_hooks != "none"

  # A rule for each kind, and the seconds for which EventBridge tries to deliver its events: for
  # as long as they are of use. Then they are dead letters.
  rules = {
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
        detail      = { state = ["stopping", "stopped", "shutting-down", "terminated"] }
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
  }
  disabled_rules = setunion(var.disabled_rules, local.hooks ? [] : ["LifecycleAction"])
}

resource "aws_sqs_queue" "queue" {
  name                      = local.name
  sqs_managed_sse_enabled   = true # EventBridge cannot use the AWS-managed KMS key
  message_retention_seconds = 300  # no notice is of use after that; the node carries what is under way
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 10 # 10 × 20 s is before retention ends
  })
}

# What could not be delivered, and what nobody could read.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${local.name}-dead-letters"
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue_policy" "queue" {
  queue_url = aws_sqs_queue.queue.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OwnRulesOnly"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.queue.arn
        Condition = { ArnEquals = { "aws:SourceArn" = values(aws_cloudwatch_event_rule.rule)[*].arn } }
      },
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.queue.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_sqs_queue_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OwnRulesOnly"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.dead_letters.arn
        Condition = { ArnEquals = { "aws:SourceArn" = values(aws_cloudwatch_event_rule.rule)[*].arn } }
      },
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.dead_letters.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "rule" {
  for_each = local.rules

  name          = "${local.name}-${each.key}"
  state         = contains(local.disabled_rules, each.key) ? "DISABLED" : "ENABLED"
  event_pattern = jsonencode(each.value.pattern)
}

resource "aws_cloudwatch_event_target" "queue" {
  for_each = local.rules

  rule      = aws_cloudwatch_event_rule.rule[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.queue.arn

  dead_letter_config {
    arn = aws_sqs_queue.dead_letters.arn
  }

  retry_policy {
    maximum_event_age_in_seconds = each.value.max_age
    maximum_retry_attempts       = 185
  }
}

resource "aws_autoscaling_lifecycle_hook" "termination" {
  for_each = toset(var.lifecycle_hooks == "create" ? var.groups : [])

  autoscaling_group_name = each.value
  name                   = "node-termination-handler"
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = var.hook_timeout
  default_result         = "CONTINUE"

  lifecycle {
    precondition {
      condition     = !contains(var.groups, "*")
      error_message = "To create hooks groups has to name the groups."
    }
  }
}

resource "aws_iam_role" "role" {
  name        = local.name
  description = "node-termination-handler of ${var.cluster_name}"
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

  lifecycle {
    precondition {
      condition     = var.identity != "IRSA" || var.oidc_provider != ""
      error_message = "IRSA needs oidc_provider."
    }

    precondition {
      condition     = length(local.name) <= 40 # a rule's name has 64 at most
      error_message = "name is longer than 40 characters: set a shorter one."
    }
  }
}

# With everything it is deploy/iam/policy.json.
resource "aws_iam_role_policy" "role" {
  name = "node-termination-handler"
  role = aws_iam_role.role.id
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
        Sid       = "Instances"
        Effect    = "Allow"
        Action    = "ec2:DescribeInstances"
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if var.tag_check],
      [for statement in [{
        Sid       = "HookLimits"
        Effect    = "Allow"
        Action    = "autoscaling:DescribeLifecycleHooks"
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if local.hooks],
      [for statement in [{
        Sid       = "Hooks"
        Effect    = "Allow"
        Action    = ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"]
        Resource  = [for group in var.groups : "arn:*:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/${group}"]
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      }] : statement if local.hooks],
    )
  })
}

resource "aws_eks_pod_identity_association" "association" {
  for_each = toset(var.identity == "PodIdentity" ? [var.cluster_name] : [])

  cluster_name    = each.value
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = aws_iam_role.role.arn
}

# EventBridge does not count as failed what has become a dead letter; SQS counts as sent to the
# dead-letter queue only what others than SQS itself sent.
resource "aws_cloudwatch_metric_alarm" "undelivered" {
  alarm_name          = "${local.name}-undelivered"
  alarm_description   = "An event for the nodes of ${var.cluster_name} did not reach the queue: see the dead-letter queue and the queue's policy"
  alarm_actions       = var.alarm_topic == "" ? [] : [var.alarm_topic]
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"

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

resource "aws_cloudwatch_metric_alarm" "oldest_message" {
  alarm_name          = "${local.name}-oldest-message"
  alarm_description   = "A notice for the nodes of ${var.cluster_name} is about to expire: nobody reads the queue, or a drain takes that long"
  alarm_actions       = var.alarm_topic == "" ? [] : [var.alarm_topic]
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.queue.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = var.oldest_message_seconds
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
}
