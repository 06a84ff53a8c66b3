# One rule for all clusters of an account in a region: it sends notices to a topic, to which the
# queue of each cluster is subscribed (variable topic_arn of the module above).
# deploy/cloudformation/fan-out.yaml creates the same.

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

resource "aws_sns_topic" "notices" {
  name = var.name
  tags = var.tags
}

# Queues of the account subscribe with the permissions of whoever creates them.
resource "aws_sns_topic_policy" "notices" {
  arn = aws_sns_topic.notices.arn
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OwnRuleOnly"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sns:Publish"
        Resource  = aws_sns_topic.notices.arn
        Condition = { ArnEquals = { "aws:SourceArn" = aws_cloudwatch_event_rule.notices.arn } }
      },
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sns:Publish"
        Resource  = aws_sns_topic.notices.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

# Events that could not be published. What does not reach a queue goes to the dead-letter queue of its cluster.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${var.name}-dead-letters"
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 1209600
  tags                      = var.tags
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
        Condition = { ArnEquals = { "aws:SourceArn" = aws_cloudwatch_event_rule.notices.arn } }
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

# It has the filters of all kinds: each lets in what lacks its field.
resource "aws_cloudwatch_event_rule" "notices" {
  name  = "${var.name}-Notices"
  state = "ENABLED"
  tags  = var.tags
  event_pattern = jsonencode({
    source = ["aws.autoscaling", "aws.ec2", "aws.health"]
    detail-type = [
      "EC2 Spot Instance Interruption Warning",
      "EC2 Instance Rebalance Recommendation",
      "EC2 Instance State-change Notification",
      "AWS Health Event",
      "EC2 Instance-terminate Lifecycle Action",
      "EC2 Instance-launch Lifecycle Action",
      "EC2 Capacity Reservation Instance Interruption Warning",
      "EC2 Interruptible Capacity Reservation Instance Interruption Warning", # its older name
      "Capacity Block Expiration Warning",
      "Capacity Block Reservation Expiration Warning", # the older name
    ]
    detail = {
      state             = ["stopping", "stopped", "shutting-down", "terminated", { exists = false }]
      service           = ["EC2", { exists = false }]
      eventTypeCategory = ["scheduledChange", { exists = false }]
    }
  })
}

resource "aws_cloudwatch_event_target" "topic" {
  rule      = aws_cloudwatch_event_rule.notices.name
  target_id = "topic"
  arn       = aws_sns_topic.notices.arn

  dead_letter_config {
    arn = aws_sqs_queue.dead_letters.arn
  }

  retry_policy {
    maximum_event_age_in_seconds = 86400
    maximum_retry_attempts       = 185
  }
}

# EventBridge does not count an event as failed if it went to the dead-letter queue.
resource "aws_cloudwatch_metric_alarm" "undelivered" {
  alarm_name          = "${var.name}-undelivered"
  alarm_description   = "An event for the nodes of all clusters did not reach the topic: see the dead-letter queue and the topic's policy"
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

  metric_query {
    id          = "rule_Notices"
    return_data = false

    metric {
      namespace   = "AWS/Events"
      metric_name = "FailedInvocations"
      dimensions  = { RuleName = aws_cloudwatch_event_rule.notices.name }
      stat        = "Sum"
      period      = 60
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
