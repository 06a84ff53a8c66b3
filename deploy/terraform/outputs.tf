output "queue_url" {
  description = "For the value queueURL."
  value       = aws_sqs_queue.queue.url
}

output "role_arn" {
  description = "For the annotation eks.amazonaws.com/role-arn with IRSA."
  value       = aws_iam_role.role.arn
}

output "dead_letters_url" {
  description = "What could not be delivered, and what nobody could read."
  value       = aws_sqs_queue.dead_letters.url
}
