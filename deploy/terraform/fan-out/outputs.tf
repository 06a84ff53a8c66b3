# It is known before the topic is there, so that both modules can be applied at once.
output "topic_arn" {
  description = "ARN of the topic, for the variable topic_arn of each cluster."
  value       = "arn:${data.aws_partition.current.partition}:sns:${data.aws_region.current.id}:${data.aws_caller_identity.current.account_id}:${var.name}"
  depends_on  = [aws_sns_topic.notices]
}

output "dead_letters_url" {
  description = "URL of the dead-letter queue: events that could not be published."
  value       = aws_sqs_queue.dead_letters.url
}
