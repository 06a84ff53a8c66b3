output "queue_url" {
  description = "URL of the queue, for the chart's value queueURL."
  value       = aws_sqs_queue.queue.url
}

output "role_arn" {
  description = "ARN of the role, for the annotation eks.amazonaws.com/role-arn with IRSA; null with an existing role."
  value       = var.identity == "Existing" ? null : aws_iam_role.role["role"].arn
}

output "dead_letters_url" {
  description = "URL of the dead-letter queue: messages that could not be delivered or read."
  value       = aws_sqs_queue.dead_letters.url
}
